#include <stdlib.h>

#include "base/grow.h"
#include "runtime/text/tokenizer_internal.h"

/* Symbols of a word are a linked list in an array. A merge joins a symbol
 * with the one behind it, which leaves the list. The heap holds, for pairs of
 * neighbours that are or were there, rank and place of the left one in one
 * number, so that the smallest is the best pair and the leftmost of equals.
 * An entry whose pair is gone is found out when it is taken. */
struct bpe_symbol {
    int32_t id; /* -1: merged into the one before it */
    uint32_t prev, next;
};

static const uint32_t NONE = UINT32_MAX;

/* A word may have all the bytes of a text, and its merging then takes seconds:
 * every so many steps it is asked whether anybody still waits. */
enum {
    STEPS_BETWEEN_LOOKS = 4096,
    LONG_WORD = 4096 /* bytes from which on its tokens are estimated first */
};

void tokenizer_bpe_fini(struct bpe_scratch *w)
{
    free(w->sym);
    free(w->heap);
    w->sym = NULL;
    w->heap = NULL;
    w->sym_cap = w->n_heap = w->heap_cap = 0;
}

static enum err heap_push(struct bpe_scratch *w, uint64_t key)
{
    void *p =
        grow_array(w->heap, &w->heap_cap, w->n_heap + 1, sizeof(*w->heap));
    if (p == NULL)
        return ERR_NOMEM;
    w->heap = p;
    size_t i = w->n_heap++;
    while (i > 0 && w->heap[(i - 1) / 2] > key) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w->heap[i] = key;
    return OK;
}

static uint64_t heap_pop(struct bpe_scratch *w)
{
    uint64_t top = w->heap[0];
    uint64_t key = w->heap[--w->n_heap];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= w->n_heap)
            break;
        if (child + 1 < w->n_heap && w->heap[child + 1] < w->heap[child])
            child++;
        if (w->heap[child] >= key)
            break;
        w->heap[i] = w->heap[child];
        i = child;
    }
    w->heap[i] = key;
    return top;
}

/* The pair that begins at `left` becomes a candidate, if it can merge. */
static enum err offer(const struct tokenizer *t, struct bpe_scratch *w,
                      uint32_t left)
{
    if (left == NONE || w->sym[left].next == NONE)
        return OK;
    int32_t rank =
        tokenizer_rank(t, w->sym[left].id, w->sym[w->sym[left].next].id);
    if (rank < 0)
        return OK;
    return heap_push(w, (uint64_t)(uint32_t)rank << 32 | left);
}

static enum err merge_best(const struct tokenizer *t, struct bpe_scratch *w)
{
    uint64_t top = heap_pop(w);
    const struct merge *g = &t->merge[top >> 32];
    uint32_t left = (uint32_t)top;
    struct bpe_symbol *sym = w->sym;
    uint32_t right = sym[left].next;
    if (sym[left].id != g->left || right == NONE || sym[right].id != g->right)
        return OK;
    sym[left].id = g->result;
    sym[left].next = sym[right].next;
    sym[right].id = -1;
    if (sym[left].next != NONE)
        sym[sym[left].next].prev = left;
    enum err rc = offer(t, w, sym[left].prev);
    return rc == OK ? offer(t, w, left) : rc;
}

/* The word has at least so many tokens: each begins with one of its bytes. */
static size_t least_of_word(const struct tokenizer *t, const char *s, size_t n)
{
    uint32_t longest = 1;
    size_t n_bytes = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        n_bytes += t->byte_id[c] >= 0;
        if (t->longest_from[c] > longest)
            longest = t->longest_from[c];
    }
    return n_bytes / longest;
}

enum err tokenizer_bpe(const struct tokenizer *t, struct bpe_scratch *w,
                       const char *s, size_t n, struct tokens *out)
{
    if (n == 0)
        return OK;
    if (n > LONG_WORD && out->max != 0 &&
        least_of_word(t, s, n) > out->max - out->n)
        return ERR_BUDGET;
    void *p = grow_array(w->sym, &w->sym_cap, n, sizeof(*w->sym));
    if (p == NULL)
        return ERR_NOMEM;
    w->sym = p;
    uint32_t n_sym = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t id = t->byte_id[(unsigned char)s[i]];
        if (id < 0)
            continue;
        w->sym[n_sym].id = id;
        w->sym[n_sym].prev = n_sym == 0 ? NONE : n_sym - 1;
        w->sym[n_sym].next = n_sym + 1;
        n_sym++;
    }
    if (n_sym == 0)
        return OK;
    w->sym[n_sym - 1].next = NONE;

    enum err rc = OK;
    w->n_heap = 0;
    for (uint32_t i = 0; i + 1 < n_sym && rc == OK; i++) {
        rc = offer(t, w, i);
        if (rc == OK && i % STEPS_BETWEEN_LOOKS == 0)
            rc = tokens_check_stop(out);
    }
    for (uint64_t i = 1; w->n_heap > 0 && rc == OK; i++) {
        rc = merge_best(t, w);
        if (rc == OK && i % STEPS_BETWEEN_LOOKS == 0)
            rc = tokens_check_stop(out);
    }
    for (uint32_t i = 0; i != NONE && rc == OK; i = w->sym[i].next)
        rc = tokens_push(out, w->sym[i].id);
    return rc;
}
