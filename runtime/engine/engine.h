/* engine.h - the one thread that runs the model, and how a server talks to it.
 *
 * The engine owns the pool, the sessions and the scheduler; nothing of them
 * is locked, because only the engine thread touches them. Other threads
 * submit requests, read the text of their answers, cancel, and read copies of
 * the statistics. These are the only places where server and engine meet.
 *
 * A request goes through: waiting (in the queue) -> prefill (its prompt is
 * computed in chunks between other requests' tokens) -> decode -> done. Every
 * step decodes each running request once and spends the rest of its time
 * target on prefill chunks. A running answer is never stopped for another.
 *
 * An exact request reserves room for its prompt and its longest answer before
 * it starts, waits while that cannot be had, and is refused when it can never
 * be. One that forgets (forget.h) starts as soon as the little is free that it
 * can never do without; when the pool is full, entries that rank lowest leave,
 * whichever forgetting sequence they belong to (docs/decisions, admission).
 * Finished sequences stay cached until the room is needed, and a request whose
 * tokens begin like a cached sequence, at rest or running, shares that
 * beginning. Where everything is promised to running answers a request waits,
 * and after a time it is sent away with the reason.
 */
#ifndef RUNTIME_ENGINE_ENGINE_H
#define RUNTIME_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/kv_layout.h"
#include "base/workers.h"
#include "merge/merge.h"
#include "runtime/engine/forget.h"
#include "runtime/model/model.h"
#include "runtime/text/tokenizer.h"

struct engine;
struct gen; /* one request and its answer; shared by server and engine */

enum {
    GEN_STOPS_MAX = 4,
    GEN_STOP_BYTES_MAX = 4096, /* of one stop string */
    GEN_BIAS_MAX = 65536
};

struct engine_options {
    struct model *model;               /* used by the engine thread only */
    const struct tokenizer *tokenizer; /* immutable */
    struct workers *workers;
    uint64_t kv_bytes;
    enum kv_type kv_type;
    uint32_t max_context; /* tokens of prompt and answer together */
    uint32_t max_running, max_queue;
    uint64_t queue_us;       /* a request waits no longer; 0: any time */
    uint32_t max_step_rows;  /* tokens of one step */
    uint32_t step_target_us; /* a step with decodes in it aims to end by then */
    bool deterministic;      /* chunk sizes from constants, never a clock */
    struct forget_options forget;
    struct merge_options merge; /* how admission merges, where it does */
};

struct gen_bias {
    int32_t token;
    float bias;
};

/* How to choose tokens; a server has checked the ranges (api.md 1.9). */
struct gen_params {
    float temperature;                         /* 0: greedy */
    float top_p;                               /* 1: off; 0: greedy */
    float min_p;                               /* 0: off */
    int32_t top_k;                             /* 0: off */
    float presence_penalty, frequency_penalty; /* on generated tokens */
    float repetition_penalty; /* 1: off; on prompt and generated tokens */
    bool has_seed;
    int64_t seed;
    bool ignore_eos;
    bool has_max_tokens; /* else: to the end of the context */
    uint32_t max_tokens; /* 0 only computes the prompt */
};

struct gen_request {
    struct gen_params params;
    int32_t *tokens; /* the prompt; malloc'ed, taken over by engine_submit */
    uint32_t n_tokens;
    struct gen_bias *bias; /* malloc'ed, taken over; NULL when n_bias is 0 */
    uint32_t n_bias;
    char *stop[GEN_STOPS_MAX]; /* malloc'ed, taken over; UTF-8, not empty */
    size_t stop_len[GEN_STOPS_MAX];
    uint32_t n_stops;
    struct forget_rules forget; /* the server's, but for what was asked */
    struct forget_span *pin;    /* malloc'ed, taken over; ascending, disjoint */
    uint32_t n_pins;
    /* Called from the engine thread after anything about the request has
     * changed (text arrived, it ended); also spuriously. Must return at once,
     * must not call engine or gen functions that wait, nor gen_release().
     * Never called again after gen_release() has returned, which waits for a
     * call under way: do not hold a lock there that notify takes. */
    void (*notify)(void *user);
    void *user;
};

enum gen_state { GEN_WAITING, GEN_PREFILL, GEN_DECODE, GEN_DONE };

enum gen_finish {
    GEN_FINISH_NONE,      /* not done */
    GEN_FINISH_STOP,      /* end of turn, or a stop string */
    GEN_FINISH_LENGTH,    /* max_tokens or the context */
    GEN_FINISH_CANCELLED, /* gen_cancel() */
    /* It waited as long as it may, and nothing was computed: for its turn, all
     * answers that may run at a time being there; or for room in the KV
     * memory, which running answers are promised. */
    GEN_FINISH_BUSY,
    GEN_FINISH_NO_ROOM,
    GEN_FINISH_SHUTDOWN /* the server ends: the answer is incomplete */
};

/* Why engine_submit said no. */
enum gen_refusal {
    GEN_REFUSED_NOT,
    GEN_REFUSED_CONTEXT, /* prompt does not fit the context: for ever */
    GEN_REFUSED_KV,      /* can never fit the KV budget: for ever */
    GEN_REFUSED_QUEUE,   /* the queue is full: later */
    GEN_REFUSED_DRAINING /* the server is going down */
};

struct gen_status {
    enum gen_state state;
    enum gen_finish finish;
    uint32_t prompt_tokens;
    uint32_t cached_tokens;     /* of the prompt, not computed again */
    uint32_t completion_tokens; /* end-of-turn token included */
    /* The kv object of a response (interface.md): retained + evicted = full;
     * merged ones are among the evicted. */
    enum forget_policy policy;
    uint64_t logical_tokens, retained_entries, full_entries;
    uint64_t evicted_entries, merged_entries;
    uint64_t routed_entries; /* evicted ones that found one to merge with */
    double merge_log_ratio;  /* largest log R */
    int64_t merge_us;        /* that merging took for this request */
    uint64_t kv_bytes;
    /* Microseconds since submission; 0 while it has not happened. */
    uint64_t admitted_us, first_token_us, done_us;
};

/* Starts the engine thread. On OK the caller owns *out. ERR_BUDGET with the
 * numbers when kv_bytes is too small for one short request. */
MUST_CHECK enum err engine_new(struct engine **out,
                               const struct engine_options *o,
                               struct errmsg *m);

/* No new requests from now on (GEN_REFUSED_DRAINING). Running and waiting
 * ones go on. Returns at once; any thread. */
void engine_drain(struct engine *e);

/* True when nothing runs or waits. Any thread. */
bool engine_is_idle(const struct engine *e);

/* Ends every request that is left with GEN_FINISH_SHUTDOWN, stops the thread
 * and frees the engine. All gens stay readable until released. */
void engine_free(struct engine *e);

/* Drops every session at rest; running ones stay, and lose nothing. done() is
 * called once from the engine's thread, when the room is free and the
 * statistics say so, or when the engine ends; it must return at once, and must
 * not call engine functions that wait. ERR_NOMEM: it is never called. Any
 * thread; never waits. */
MUST_CHECK enum err engine_flush(struct engine *e, void (*done)(void *user),
                                 void *user);

/* Hands a request over. On OK *out is the caller's to gen_release(), and
 * r's memory belongs to the engine. On error r's memory is still the
 * caller's (gen_request_fini), *why says which of the four reasons, and the
 * sentence holds the numbers: ERR_INVAL for _CONTEXT and _KV, ERR_BUSY for
 * _QUEUE, ERR_BUDGET for _DRAINING; ERR_NOMEM with GEN_REFUSED_NOT. Any
 * thread; never waits for a step. */
MUST_CHECK enum err engine_submit(struct engine *e, struct gen_request *r,
                                  struct gen **out, enum gen_refusal *why,
                                  struct errmsg *m);

/* Frees what a request holds that was not taken over; r is empty after. */
void gen_request_fini(struct gen_request *r);

/* Appends to *text what has been generated since the last call: whole UTF-8
 * characters, nothing that could still become part of a stop string, no
 * special tokens. *status is the state at that moment: when its state is
 * GEN_DONE no text will follow. Any one thread at a time. ERR_NOMEM loses
 * nothing: call again. */
MUST_CHECK enum err gen_read(struct gen *g, struct buf *text,
                             struct gen_status *status);

void gen_status(struct gen *g, struct gen_status *status);

/* Asks for the end; it comes within one step, in any state. Any thread,
 * repeatable. The result is GEN_DONE with GEN_FINISH_CANCELLED unless the
 * request was done already. */
void gen_cancel(struct gen *g);

/* Cancels if not done, and lets go. */
void gen_release(struct gen *g);

/* vLLM's buckets for the metric of the same meaning; see stats.c. */
enum { ENGINE_BUCKETS_MAX = 24 };

struct engine_histogram {
    uint32_t n;                             /* buckets, without +Inf */
    const double *le;                       /* upper bounds; constant memory */
    uint64_t count[ENGINE_BUCKETS_MAX + 1]; /* not cumulative; last = +Inf */
    double sum;
};

/* Why entries were evicted. */
enum engine_cause {
    ENGINE_PRESSURE,  /* the pool ran short */
    ENGINE_CAP,       /* the session is above its own cap */
    ENGINE_ADMISSION, /* a prompt is larger than its share */
    ENGINE_N_CAUSES
};

/* A copy, consistent in itself. Tokens are counted as they are computed. */
struct engine_stats {
    uint32_t running, waiting;
    uint64_t prompt_tokens;  /* logical, of admitted requests */
    uint64_t prefill_tokens; /* computed */
    uint64_t generation_tokens;
    uint64_t cached_tokens;
    uint64_t dropped_sessions;              /* at rest, dropped to make room */
    uint64_t expired_busy, expired_no_room; /* ends of those names */
    uint64_t refused_queue, refused_kv, refused_context, refused_draining;
    uint64_t steps, step_prefill_tokens, step_decode_tokens;
    /* Bytes of the budget by state; they sum to budget_bytes. */
    uint64_t budget_bytes, live_bytes, prefix_bytes, reserved_bytes, free_bytes;
    uint64_t entries_logical, entries_retained;
    uint64_t sessions_live, sessions_at_rest;
    uint64_t evicted[ENGINE_N_CAUSES]; /* entries */
    uint64_t merged;                   /* of these, live on in another */
    uint64_t routed;        /* of these, found one that might take them in */
    double merge_log_ratio; /* largest log R of a merge (merge/merge.h) */
    double evicted_below;   /* effective score that decided the last pass */
    struct engine_histogram first_token_seconds, inter_token_seconds,
        request_seconds, queue_seconds, step_seconds, evict_seconds,
        merge_seconds, retained_share; /* of sessions at request end */
};

void engine_stats(struct engine *e, struct engine_stats *out);

/* Bytes of step memory that the engine allocated at start, beside the KV
 * budget and the model's own: logits of every running answer, sampling
 * scratch, the plan of a step. Constant after start; any thread. */
uint64_t engine_memory_bytes(const struct engine *e);

/* Constant after start; any thread. */
uint32_t engine_max_context(const struct engine *e);
/* Tokens of the longest sequence that the whole KV budget can hold. */
uint64_t engine_pool_tokens(const struct engine *e);
uint32_t engine_n_vocab(const struct engine *e);

#endif
