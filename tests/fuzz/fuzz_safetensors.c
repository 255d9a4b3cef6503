/* Fuzz target: any bytes as a tensor file, and as retention gates. Built and
 * run by `make fuzz`. */
#include "base/safetensors.h"
#include "gates/gate_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct safetensors *s = NULL;
    struct gate *g = NULL;
    struct errmsg m;
    if (safetensors_parse(&s, data, n, &m) != OK)
        return 0;
    volatile uint8_t sum = 0;
    for (size_t i = 0; i < safetensors_count(s); i++) {
        const struct safetensors_tensor *t = safetensors_at(s, i);
        for (uint64_t k = 0; k < t->bytes; k++)
            sum = (uint8_t)(sum + t->data[k]);
        if (safetensors_find(s, t->name) == NULL)
            __builtin_trap();
    }
    if (gate_read(&g, s, NULL, &m) == OK)
        gate_free(g);
    safetensors_close(s);
    return 0;
}
