/* probe.h - what is seen of a sequence's attention while it is computed.
 *
 * Policies and merges ask what the last queries look at, and some what all of
 * them did. Attention keeps neither. A probe rides on the runs of one sequence
 * (struct model_run) and keeps the rotated queries of its last n_window
 * tokens; what they look at is computed when it is asked for, from the keys
 * that are stored then (probe_attention). That is all a server needs, and
 * costs one copy of a few rows a chunk.
 *
 * For comparing methods it can keep more, while the tokens pass:
 *
 *   PROBE_BAND     attention of each token to those before it in its bucket
 *                  of 32 positions (merge/band.h), as halves: 64 bytes a
 *                  token and list, a small part of the time of attention
 *   PROBE_COLUMNS  attention that each entry got from all queries: a second
 *                  pass over the keys, 4 bytes a token and list
 *   PROBE_FUTURE   mean and covariance of the queries before rotation
 *
 * Everything is the same bits for any chunking of the prompt and any number of
 * threads. A run that does not begin where the one before ended starts the
 * window anew; what was summed up stays. Queries are kept as they were
 * rotated: whoever gives the keys other RoPE positions starts anew too.
 *
 * Owns its memory, sized once. Threads: as the sequence; a step writes it,
 * between steps any thread may read it.
 */
#ifndef RUNTIME_MODEL_PROBE_H
#define RUNTIME_MODEL_PROBE_H

#include <stdint.h>

#include "base/err.h"
#include "cache/table.h"
#include "runtime/model/model.h"

enum probe_part {
    PROBE_BAND = 1 << 0,
    PROBE_COLUMNS = 1 << 1,
    PROBE_FUTURE = 1 << 2
};

enum { PROBE_BUCKET = 32 }; /* positions, and cells of a row of the band */

struct probe_options {
    uint32_t n_window; /* at least 1 */
    uint32_t parts;    /* of enum probe_part */
    /* Positions are below; not read without parts. With PROBE_BAND alone they
     * may pass it, by runs of no more rows than that: what is kept then are
     * the last so many (probe_band). */
    uint32_t max_tokens;
    /* First positions that PROBE_FUTURE leaves out: their queries are like no
     * others. */
    uint32_t n_skip;
};

struct probe;

/* On OK the caller ends *out with probe_free(). The model must outlive it. */
MUST_CHECK enum err probe_new(struct probe **out, const struct model *m,
                              const struct probe_options *o, struct errmsg *e);
void probe_free(struct probe *p); /* NULL is allowed */
uint64_t probe_bytes(const struct model *m, const struct probe_options *o);

/* Forgets everything: for the next sequence. */
void probe_reset(struct probe *p);
/* `to` has seen what `from` has: for a fork. Both have the same options. */
void probe_copy(struct probe *to, const struct probe *from);

/* The same of the last queries alone: both have as many of them. */
void probe_copy_window(struct probe *to, const struct probe *from);

/* The position after the last one seen. */
uint32_t probe_n_seen(const struct probe *p);
/* Queries that are there: the last ones, n_window at most. */
uint32_t probe_n_rows(const struct probe *p);
uint32_t probe_parts(const struct probe *p);

/* What the last queries look at in one list as it is stored now, W rows of
 * `stride` floats, oldest first, by entry in the order of the list. An entry
 * at a later position than the query is not seen. stride: at least the
 * list's length. */
struct probe_rows {
    uint32_t n; /* the last n rows, at most probe_n_rows() */
    int64_t stride;
    float *sum;  /* softmax over all that is seen, summed over the group */
    float *peak; /* NULL, or the largest logit of the group (-inf: not seen) */
};

/* Bytes of scratch for lists of up to n_entries, aligned as malloc aligns. */
uint64_t probe_scratch_bytes(const struct probe *p, uint32_t n_entries);
void probe_attention(const struct probe *p, const struct table *t,
                     uint32_t i_list, const struct probe_rows *out,
                     void *scratch);

/* By position, [max_tokens]: attention of all queries seen, summed over rows
 * and group. Only with PROBE_COLUMNS. */
const float *probe_columns(const struct probe *p, uint32_t i_list);

/* What the last queries looked at each entry of one unit of a list, summed over
 * rows and group, each as a part of all that it saw when it was computed:
 * mass[KV_UNIT], zeros behind the end of the list. For whoever asks for few
 * entries: nothing but that unit is read. Keys and biases are those that are
 * stored now. Scratch: probe_scratch_bytes(p, KV_UNIT). */
void probe_masses(const struct probe *p, const struct table *t, uint32_t i_list,
                  uint32_t i_unit, float *mass, void *scratch);

/* [max_tokens][PROBE_BUCKET], position p in row p % max_tokens: cell c of a row
 * is the attention of the query at that position to the position c of its
 * bucket, summed over the group; 0 where it is not known or not seen. Only
 * with PROBE_BAND. */
const uint16_t *probe_band(const struct probe *p, uint32_t i_list);

/* What queries to come are expected to be, had they the distribution of those
 * seen, averaged over the rotations of n_ahead positions from n_seen on:
 * mean[group][d] and cov[group][d][d]. Only with PROBE_FUTURE; zeros when
 * nothing was seen. */
void probe_future(const struct probe *p, uint32_t i_list, uint32_t n_ahead,
                  float *mean, float *cov);

#endif
