#include "base/dtype.h"

#include <stddef.h>

static const struct dtype_info infos[] = {
    [DTYPE_F32] = {"F32", 1, 4},       [DTYPE_F16] = {"F16", 1, 2},
    [DTYPE_Q4_0] = {"Q4_0", 32, 18},   [DTYPE_Q4_1] = {"Q4_1", 32, 20},
    [DTYPE_Q5_0] = {"Q5_0", 32, 22},   [DTYPE_Q5_1] = {"Q5_1", 32, 24},
    [DTYPE_Q8_0] = {"Q8_0", 32, 34},   [DTYPE_Q4_K] = {"Q4_K", 256, 144},
    [DTYPE_Q5_K] = {"Q5_K", 256, 176}, [DTYPE_Q6_K] = {"Q6_K", 256, 210},
    [DTYPE_BF16] = {"BF16", 1, 2},
};

static const char *const others[] = {
    [9] = "Q8_1",     [10] = "Q2_K",   [11] = "Q3_K",    [15] = "Q8_K",
    [16] = "IQ2_XXS", [17] = "IQ2_XS", [18] = "IQ3_XXS", [19] = "IQ1_S",
    [20] = "IQ4_NL",  [21] = "IQ3_S",  [22] = "IQ2_S",   [23] = "IQ4_XS",
    [24] = "I8",      [25] = "I16",    [26] = "I32",     [27] = "I64",
    [28] = "F64",     [29] = "IQ1_M",  [34] = "TQ1_0",   [35] = "TQ2_0",
    [39] = "MXFP4",
};

const struct dtype_info *dtype_info(uint32_t type)
{
    if (type >= sizeof(infos) / sizeof(infos[0]) || infos[type].name == NULL)
        return NULL;
    return &infos[type];
}

const char *dtype_name(uint32_t type)
{
    const struct dtype_info *info = dtype_info(type);
    if (info != NULL)
        return info->name;
    if (type < sizeof(others) / sizeof(others[0]) && others[type] != NULL)
        return others[type];
    return "unknown";
}
