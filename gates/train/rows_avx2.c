/* The functions of rows.h for AVX2, by the flags that the file's name asks
 * for. */
#define ROWS_TABLE rows_avx2
#define ROWS_LANES 8
#define ROWS_NAME "avx2"
#include "gates/train/rows_internal.h"
