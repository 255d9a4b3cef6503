#include "merge/routing.h"

#include "merge/band.h"

/* The host of entry j among entries [from, j), all of j's bucket. */
static uint32_t host_of(const struct fate_list *l, uint32_t from, uint32_t j)
{
    const uint16_t *row = l->band + (size_t)j * BAND_CELLS;
    uint32_t best = ROUTING_NONE;
    uint16_t top = 0;
    for (uint32_t i = j; i-- > from;) {
        uint16_t rank = band_rank(row[band_cell(l->pos[i])]);
        if (l->state[i] == FATE_STAYS && rank > top) {
            best = i;
            top = rank;
        }
    }
    return best;
}

void routing_of(const struct fate_list *l, uint32_t *host)
{
    uint32_t from = 0; /* the first entry of the bucket */
    for (uint32_t j = 0; j < l->n; j++) {
        if (band_start(l->pos[from]) != band_start(l->pos[j]))
            from = j;
        host[j] = l->state[j] == FATE_LEAVES ? host_of(l, from, j)
                                             : (uint32_t)ROUTING_NONE;
    }
}
