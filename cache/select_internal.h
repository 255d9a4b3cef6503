/* select_internal.h - what the three files of the selection share.
 *
 * select.c         stages, chunks, slices, the last ties
 * select_sweep.c   one chunk of lists: settle, gather, count (parallel)
 * select_cut.c     between sweeps: where each limit is reached (serial)
 *
 * Every entry has a composite c = key << age_bits | (age_max - age): lower c
 * leaves first. Sessions, tenants and the root are nodes, each with the number
 * of entries that may still go below it (`allow`) and a range [lo, hi] of
 * undecided c: what is below lo goes, what is above hi stays. A sweep counts
 * the undecided in N_BUCKETS buckets; the cut of a node is the bucket in which
 * its limit is reached. A node whose cut lies below its parent's is closed: it
 * takes exactly what it may, whatever the others do, and ranks on alone.
 * Otherwise it shares the parent's range. The same holds for lists in a
 * session, which settle alone as soon as they close.
 */
#ifndef CACHE_SELECT_INTERNAL_H
#define CACHE_SELECT_INTERNAL_H

#include "cache/score.h"
#include "cache/select.h"

enum {
    BUCKET_BITS = 11,
    N_BUCKETS = 1 << BUCKET_BITS,
    KEY_SHIFT = SCORE_KEY_BITS - BUCKET_BITS, /* of the first sweep */
    /* No float has this key (SCORE_KEY_MAX): its bucket is that of entries
     * that can't go. */
    NO_BUCKET = N_BUCKETS - 1,
    STAGED = 4096,        /* undecided entries of a list that a thread holds */
    CHUNK_ENTRIES = 65536 /* of a task, unless one list has more */
};

static const uint32_t NO_KEY = UINT32_MAX;

enum stage { STAGE_SESSION_CAPS, STAGE_TENANT_CAPS, STAGE_POOL, N_STAGES };

/* `bucket` is the first bucket of which not all may go. `empty`: none of it
 * may, so nothing is undecided. No limit reached: N_BUCKETS, empty. */
struct cut {
    uint32_t bucket;
    bool empty;
};

struct node {
    uint64_t allow;
    uint64_t lo, hi; /* lo = hi + 1: nothing is undecided */
    uint32_t shift;  /* of c - lo to its bucket */
    struct cut cut;
    bool closed;
    bool done;         /* nothing below it is undecided, or may go */
    uint64_t left;     /* undecided entries of open children after a sweep */
    uint64_t min, max; /* of their c */
};

struct tenant_node {
    struct node node;
    uint64_t held;   /* entries now, over all its sessions */
    uint64_t *taken; /* [N_BUCKETS] taken up to and with a bucket */
};

struct session_node {
    struct node node;
    struct tenant_node *tenant;
    uint64_t held, gone;
    uint64_t capped; /* of those gone */
    uint32_t first_list, n_lists;
    /* Range and bucket width of the sweep before: lists derive theirs. */
    uint64_t old_lo, old_hi;
    uint32_t old_shift;
    uint32_t *hist; /* [N_BUCKETS], then summed up in place */
};

struct list_state {
    uint32_t len; /* at the start of the pass */
    uint32_t gone;
    uint32_t allow; /* entries that may still go in this stage */
    bool done;
    struct cut cut;          /* of the sweep before */
    uint32_t first, n_items; /* in items, once they are gathered */
};

struct chunk {
    uint32_t session;
    uint32_t from, to; /* lists of the session */
    uint64_t n_entries;
    /* Results of a sweep, added up in the order of chunks. */
    uint64_t gone, left, min, max;
};

struct item {
    uint64_t c;
    uint32_t unit, slot;
};

/* hist has two halves, used in turn: entries of a list tend to fall into the
 * same bucket, and an increment must wait for the one before. */
struct scratch {
    uint32_t hist[2][N_BUCKETS];
    uint32_t list_hist[N_BUCKETS];
    struct item item[STAGED];
};

/* Why a sweep is made. A stage begins either with SWEEP_FIRST, or, where the
 * pool is large, with a guess: SWEEP_SAMPLE and SWEEP_LOW, which looks at all
 * entries but counts and gathers only those up to the guess. If fewer than k
 * may go of these, all of them go, and the stage begins again with what is
 * left: so a bad guess costs time, and nothing else. */
enum sweep {
    SWEEP_SAMPLE,
    SWEEP_LOW,
    SWEEP_FIRST, /* counts the keys of all; nothing is settled yet */
    SWEEP_NEXT,  /* settles what the last cut decided, counts the rest finer */
    SWEEP_LAST   /* settles; the rest are ties */
};

struct select {
    struct select_size size;
    const struct select_input *in;
    struct session_node *session;
    struct tenant_node *tenant;
    struct list_state *list;
    struct chunk *chunk;
    struct item *item; /* [max_undecided] */
    struct scratch *scratch;
    uint16_t *gone;
    uint64_t *own; /* a bit a unit: private to a list when the pass began */
    uint32_t *session_hist; /* [max_sessions][N_BUCKETS] */
    uint64_t *taken;        /* [max_tenants + 1][N_BUCKETS] */

    struct node root;
    uint64_t *root_taken;
    struct select_counts counts;
    uint32_t n_chunks, next_chunk;
    enum stage stage;
    enum sweep sweep;
    bool running; /* between begin and the outcome */
    bool dropped; /* a session, in this round of the stage */
    uint32_t age_bits;
    uint64_t c_max; /* highest c that there can be */
    uint64_t bound; /* what this round of the stage looks at: c up to here */

    /* Undecided entries, list by list, once they fit. Written by many threads
     * with atomic operations during a sweep. */
    bool gathered;
    uint32_t n_items; /* or of the sample */
    uint32_t overflow;
};

/* First position of a list that a pass doesn't protect, and the end. */
struct window {
    int32_t from, to;
};
static inline struct window select_window(const struct select_input *in,
                                          const struct select_session *s)
{
    struct window w = {
        .from = (int32_t)(in->n_sinks < INT32_MAX ? in->n_sinks : INT32_MAX),
        .to =
            (int32_t)(s->n_seen > in->n_recent ? s->n_seen - in->n_recent : 0)};
    return w;
}

/* True if a unit may lose entries for this session, by who uses it now. */
static inline bool select_has_users(const struct select_input *in,
                                    const struct select_session *s, unit_id u)
{
    uint32_t n_users = s->n_users > 0 ? s->n_users : 1;
    return pool_refs(in->pool, u) == n_users &&
           (n_users == 1 || !in->unit_users || in->unit_users[u] == s->users);
}

/* Task of the compute pool: chunk i of the sweep under way. */
void select_sweep_chunk(struct select *s, uint32_t i, struct scratch *scratch);

/* Goes over a list in the pool: marks what is below [lo, hi] and shows the
 * undecided entries to `take`, in the order of their slots. */
struct scan {
    const struct select_session *in;
    struct list_state *list;
    uint32_t i_list; /* in the session */
    uint64_t lo, hi;
    void (*take)(void *ctx, const struct item *e);
    void *ctx;
};
void select_scan(struct select *s, const struct scan *how);

static inline void select_mark(struct select *s, struct list_state *l,
                               const struct item *e)
{
    s->gone[e->unit] |= (uint16_t)(1u << e->slot);
    l->gone++;
    l->allow--;
}

/* Bits to shift by so that 0 to width fall into N_BUCKETS buckets. */
static inline uint32_t select_shift(uint64_t width)
{
    uint32_t shift = 0;
    while (width >> shift >= N_BUCKETS)
        shift++;
    return shift;
}

/* After SWEEP_SAMPLE: a c that about 1.1 k entries lie below, or c_max when
 * the sample says nothing, or too many to gather. */
uint64_t select_guess(struct select *s);

/* After a sweep: adds up the chunks, finds all cuts, sets the next ranges.
 * True when no range holds two different c: what is undecided are ties. */
bool select_cut_all(struct select *s);

/* Narrows [*lo, *hi], counted in buckets of 2^shift, to the undecided bucket
 * of a cut: to nothing at its start if it is empty. */
void select_cut_range(const struct cut *c, uint32_t shift, uint64_t *lo,
                      uint64_t *hi);

/* Adds up what the chunks marked. */
void select_add_chunks(struct select *s);

#endif
