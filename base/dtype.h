/* dtype.h - the tensor types of model files that this program computes with.
 *
 * The numbers are those of the GGUF format. A tensor of a quantised type is a
 * sequence of blocks along its fastest dimension; every block holds
 * block_elems values in block_bytes bytes. The block layouts are described,
 * with their formulas, in runtime/kernels/quant.h.
 *
 * Threads: any; constants only.
 */
#ifndef BASE_DTYPE_H
#define BASE_DTYPE_H

#include <stdint.h>

enum dtype {
    DTYPE_F32 = 0,
    DTYPE_F16 = 1,
    DTYPE_Q4_0 = 2,
    DTYPE_Q4_1 = 3,
    DTYPE_Q5_0 = 6,
    DTYPE_Q5_1 = 7,
    DTYPE_Q8_0 = 8,
    DTYPE_Q4_K = 12,
    DTYPE_Q5_K = 13,
    DTYPE_Q6_K = 14,
    DTYPE_BF16 = 30
};

struct dtype_info {
    const char *name; /* "Q4_1" */
    uint32_t block_elems;
    uint32_t block_bytes;
};

/* NULL for a number that is not in enum dtype. */
const struct dtype_info *dtype_info(uint32_t type);

/* The usual name of any type number of the GGUF format, also of those we do
 * not compute with ("IQ2_XS"); "unknown" for the rest. For error messages. */
const char *dtype_name(uint32_t type);

#endif
