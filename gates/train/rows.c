#define ROWS_TABLE rows_plain
#define ROWS_LANES 4
#define ROWS_NAME "plain"
#include "gates/train/rows_internal.h"

#include "runtime/kernels/ops.h"

const struct rows *rows_best(void)
{
    return ops_avx2() != NULL ? &rows_avx2 : &rows_plain;
}
