/* Fuzz target: any bytes as a model file. Built and run by `make fuzz`. */
#include "tests/fuzz/touch_gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct errmsg m;
    touch_gguf(data, n, &m);
    return 0;
}
