/* band.h - how much a token looked at the tokens just before it: what routing
 * reads.
 *
 * One row of BAND_CELLS halves for each entry of a list, written when the
 * token passes through prefill and moved with the entry until admission ends.
 * Cell c of the row of the token at position p is the softmax attention of
 * that token's query to position (p - p % BAND_CELLS) + c, summed over the
 * query heads of the KV head. The denominator is that of the whole row: all
 * entries the query saw. Cells are by position, not by entry, so eviction and
 * compaction never change a row.
 *
 * Cells at and after the token itself are never read. A row of zeros says
 * that nothing is known (an entry of an earlier turn): it is not routed. Nor
 * is attention below 2^-24, which a half cannot hold.
 *
 * Routing asks only which cell is the largest, and which the next, so whoever
 * must keep rows for long can keep their order in a third of the room.
 *
 * Threads: any; nothing is kept.
 */
#ifndef MERGE_BAND_H
#define MERGE_BAND_H

#include <stdint.h>

#include "merge/merge.h"

enum {
    BAND_CELLS = MERGE_BUCKET,
    BAND_BYTES = BAND_CELLS * 2, /* of one entry */
    BAND_ORDER_BYTES = 20,       /* of its order: 32 numbers of 5 bits */
    BAND_INFINITE = 0x7c00       /* the first half that is no finite number */
};

/* The first position of the bucket of a position, and the cell of it. */
static inline int32_t band_start(int32_t pos)
{
    return pos - pos % BAND_CELLS;
}

static inline uint32_t band_cell(int32_t pos)
{
    return (uint32_t)(pos % BAND_CELLS);
}

/* Halves that are not negative stand in the order of their bits. What is no
 * attention (negative, infinite, not a number) counts as none. */
static inline uint16_t band_rank(uint16_t half)
{
    return half < BAND_INFINITE ? half : 0;
}

/* The order of a row: the cells before `pos` that hold any attention, the most
 * first, and of equals the later one. */
void band_pack(const uint16_t *row, int32_t pos, uint8_t *order);
/* A row that routes as the one did whose order it is. */
void band_unpack(const uint8_t *order, uint16_t *row);

#endif
