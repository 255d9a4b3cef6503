#include "merge/band.h"

#include <string.h>

/* Eight numbers of 5 bits are 5 bytes. The first number is how many cells
 * follow: a token has 31 before it at most. */
enum { NUMBER_BITS = 5, NUMBERS = 8, GROUP_BYTES = 5 };

static void put(uint8_t *order, const uint8_t *number)
{
    for (uint32_t g = 0; g < BAND_CELLS / NUMBERS; g++, number += NUMBERS) {
        uint64_t x = 0;
        for (uint32_t k = 0; k < NUMBERS; k++)
            x |= (uint64_t)number[k] << k * NUMBER_BITS;
        for (uint32_t k = 0; k < GROUP_BYTES; k++)
            *order++ = (uint8_t)(x >> 8 * k);
    }
}

static void get(const uint8_t *order, uint8_t *number)
{
    for (uint32_t g = 0; g < BAND_CELLS / NUMBERS; g++, number += NUMBERS) {
        uint64_t x = 0;
        for (uint32_t k = 0; k < GROUP_BYTES; k++)
            x |= (uint64_t)*order++ << 8 * k;
        for (uint32_t k = 0; k < NUMBERS; k++)
            number[k] = x >> k * NUMBER_BITS & (BAND_CELLS - 1);
    }
}

void band_pack(const uint16_t *row, int32_t pos, uint8_t *order)
{
    uint8_t number[BAND_CELLS] = {0};
    uint32_t n = 0;
    /* Sorted by insertion; the cells come from the last to the first, so of
     * equals the later one is there already and stays before. */
    for (uint32_t c = band_cell(pos); c-- > 0;) {
        uint16_t rank = band_rank(row[c]);
        if (rank == 0)
            continue;
        uint32_t at = ++n;
        for (; at > 1 && band_rank(row[number[at - 1]]) < rank; at--)
            number[at] = number[at - 1];
        number[at] = (uint8_t)c;
    }
    number[0] = (uint8_t)n;
    put(order, number);
}

void band_unpack(const uint8_t *order, uint16_t *row)
{
    uint8_t number[BAND_CELLS];
    get(order, number);
    memset(row, 0, BAND_BYTES);
    for (uint32_t i = 1; i <= number[0]; i++)
        row[number[i]] = (uint16_t)(BAND_CELLS - i);
}
