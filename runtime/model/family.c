#include "runtime/model/model_internal.h"

#include <string.h>

/* Converters permute the rows of Q and K of llama checkpoints so that the two
 * halves of a rotated pair are neighbours; those of the Qwen families stay
 * half a head apart. */
static const struct family families[] = {
    {.arch = "llama", .rope_interleaved = true},
    {.arch = "qwen2", .qkv_bias = true},
    {.arch = "qwen3", .qk_norm = true},
};

enum { N_FAMILIES = sizeof(families) / sizeof(families[0]) };

const struct family *model_family(const char *arch)
{
    for (int i = 0; i < N_FAMILIES; i++)
        if (strcmp(families[i].arch, arch) == 0)
            return &families[i];
    return NULL;
}

const char *model_family_names(void)
{
    return "llama, qwen2 and qwen3";
}
