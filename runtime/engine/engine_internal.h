/* engine_internal.h - the engine's own structure, shared by its files:
 *
 *   engine.c   life, the thread's loop, statistics
 *   submit.c   the one door from other threads: checks, limits, the inbox
 *   flush.c    sessions at rest, dropped on request
 *   admit.c    from the queue to a running session; ends of all kinds
 *   room.c     room in the pool: what is free, forgotten, dropped, cut
 *   cap.c      caps of sessions, while they run and when they come to rest
 *   reposition.c  sessions that come to the end of the context
 *   cut.c      cuts of sessions, at once or in slices
 *   plan.c     who gets how many rows of the next step, and room for them
 *   gates.c    gates of answers' tokens, computed for several steps together
 *   step.c     one step: batch, model, tokens, text
 *
 * Fields under `mu` are shared with other threads. All others belong to the
 * engine thread, or are constant since start.
 */
#ifndef RUNTIME_ENGINE_ENGINE_INTERNAL_H
#define RUNTIME_ENGINE_ENGINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/rng.h"
#include "cache/pool.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/evict.h"
#include "runtime/engine/gen.h"
#include "runtime/engine/lm.h"
#include "runtime/engine/queue.h"
#include "runtime/engine/rank.h"
#include "runtime/engine/sample.h"
#include "runtime/engine/schedule.h"
#include "runtime/engine/session.h"
#include "runtime/engine/watch.h"

enum {
    /* The shortest request that must fit: prompt and answer together. */
    ENGINE_LEAST_TOKENS = 64,
    /* A request waits for another that is computing its prompt when at least
     * so many tokens are saved by it. */
    ENGINE_HOLD_LEAST = 32,
    ENGINE_SCRATCHES_MAX = 8,
    /* Chunks of a prompt that is cut end at multiples of this. */
    ENGINE_CHUNK = 32,
    /* Longest answer of a session that may pass the context. */
    ENGINE_ANSWER_MAX = 1 << 20,
    /* Sessions at rest and running; beyond it those at rest are dropped. */
    ENGINE_SESSIONS_MAX = 4096,
    /* Entries that a pass looks at in one step, where it may take several: on
     * one core a few milliseconds. */
    ENGINE_SLICE = 3 << 18,
    ENGINE_TAKE_COST = 128, /* of an entry taken out, in entries looked at */
    /* Prompts that are watched at a time, for merging. Those beyond are
     * admitted without. */
    ENGINE_WATCHES = 4
};

/* Submitted requests by what was thought of them at the door. */
struct engine_load {
    uint32_t n_starts; /* slot and room were free */
    uint32_t n_waits;
    uint64_t units; /* that the starting ones need */
};

struct engine {
    /* Constant. */
    struct lm lm;
    struct engine_options o;
    uint32_t n_lists;
    uint32_t n_units;     /* of the pool */
    uint64_t pool_tokens; /* longest sequence that the pool can hold */
    int32_t fallback;     /* token in place of logits without a number */

    pthread_t thread;
    pthread_mutex_t mu;
    pthread_cond_t cond;
    /* Under mu. */
    struct gen *pending_first, *pending_last;
    struct engine_load pending; /* and those taken in since the last publish */
    uint32_t n_queued;          /* as of the last publish, like the next two */
    uint32_t open_slots;
    uint64_t open_units;
    struct flush *flushes; /* asked for */
    bool is_woken, is_draining, is_stopping;
    uint64_t refused_queue, refused_kv, refused_context, refused_draining;
    struct engine_stats published;
    atomic_uint n_active; /* changes under mu: submitted and not done */

    /* The engine thread's. */
    struct pool *pool;
    struct sessions sessions;
    uint32_t max_sessions;
    struct evict *evict; /* passes under pressure */
    struct evict *cuts;  /* of sessions with a limit, at once */
    struct evict *slow;  /* and in slices: that of `cutting`, or NULL */
    struct gen *cutting;
    uint64_t slice; /* ENGINE_SLICE; less in tests */
    struct watches *watches;
    struct ranker *ranker;
    struct queue queue;
    struct schedule schedule;
    struct gen **running; /* [max_running], in order of admission */
    uint32_t n_running;
    struct gen *changed;       /* to be delivered */
    struct flush *flushing;    /* taken in; their callers are to be told */
    struct engine_load taken;  /* of pending: to be taken off at publish */
    struct engine_stats stats; /* counters and histograms */
    struct rng rng;            /* seeds of requests without one */
    uint64_t n_admitted;
    uint32_t n_ended; /* since the last publish */
    bool look;        /* something changed that may let a request start */
    bool is_ending;   /* all end: what comes to rest is of no use to anybody */
    bool said_bad;    /* logits without numbers were logged */
    bool goes_on;     /* this round is nothing but the answers' next tokens */

    /* Step memory. */
    uint64_t memory_bytes;             /* of what follows */
    int32_t *row_token;                /* [max_step_rows] */
    struct model_run *run;             /* [max_running] */
    struct gen **run_gen;              /* [max_running] */
    uint32_t *logit_row;               /* [max_running] */
    struct gen **logit_gen;            /* [max_running] */
    float *logits;                     /* [max_running][n_vocab] */
    int32_t *chosen;                   /* [max_running] */
    bool *is_bad;                      /* [max_running] */
    struct schedule_prefill **prefill; /* [max_running] */
    struct evict_limit *limit;         /* [max_running] */
    struct sample_scratch **scratch;   /* [n_scratch] */
    uint32_t n_scratch;
    struct buf piece; /* text of one token */
};

/* engine_new() with any lm; o->model is not looked at. */
MUST_CHECK enum err engine_new_lm(struct engine **out,
                                  const struct engine_options *o,
                                  const struct lm *lm, struct errmsg *m);

/* Makes the thread look at its inbox and at cancelled requests. */
void engine_wake(struct engine *e);

/* submit.c, engine thread: waits until there is something to do, moves what
 * was submitted to the queue. False: the engine is to stop. */
bool engine_take_in(struct engine *e);

/* flush.c, engine thread: does what was asked for; tells those who asked,
 * once it is published. */
void engine_do_flush(struct engine *e);
void engine_tell_flushed(struct engine *e);

/* Entries of a list that can never be taken from a session with these pins. */
uint64_t engine_floor(const struct engine *e, const struct forget_span *pin,
                      uint32_t n_pins);

/* admit.c */
void engine_admit(struct engine *e);
/* Ends requests that have waited too long. */
void engine_expire(struct engine *e);
void engine_purge_cancelled(struct engine *e);
void engine_end_all(struct engine *e, enum gen_finish finish);
/* Ends a running or waiting request; it is delivered later. */
void engine_end(struct engine *e, struct gen *g, enum gen_finish finish);
void engine_mark_changed(struct engine *e, struct gen *g);
/* Microseconds since submission, at least 1. */
uint64_t engine_age_us(const struct gen *g, int64_t now);

/* room.c. Units that are neither used nor reserved. */
uint64_t engine_free_units(const struct engine *e);
/* Makes some room on the way to `need` free units, `spare` (or NULL) being the
 * last to be dropped. False: there is nothing left to gain. */
bool engine_gain(struct engine *e, uint64_t need, const struct session *spare);
/* The part of it that drops nothing: one pass. */
bool engine_forget_some(struct engine *e, uint64_t need);
/* Works on a pass in slices before the room is needed, where a whole one
 * would be felt; and the units that stay free for the time that takes. */
void engine_gain_ahead(struct engine *e, uint64_t need);
uint64_t engine_margin(const struct engine *e);
/* Units that each step may take while that pass is under way so that they last
 * until it gives room; UINT64_MAX: there is none. */
uint64_t engine_rate(const struct engine *e);
/* Puts what a pass did into the statistics; returns the entries that left. */
uint64_t engine_count(struct engine *e, const struct evict_result *r);
/* A stall for eviction began then, by clock_us(), and ends now. */
void engine_note_stall(struct engine *e, int64_t start);
/* Copies, for this session alone, what others share with it. False: no unit is
 * free for the rest, and none can be had. */
bool engine_own_units(struct engine *e, struct session *s);
/* cut.c. Cuts n sessions to their limits, at once; returns the entries that
 * left. */
uint64_t engine_cut(struct engine *e, const struct evict_limit *l, uint32_t n);
/* Leaves a cut to engine_cut_some() where others would feel it, and its session
 * waits. False: it is not that large, or can only be made at once. */
bool engine_cut_later(struct engine *e, struct gen *g,
                      const struct evict_limit *l);
/* Works on a cut that was left, before a step is planned. */
void engine_cut_some(struct engine *e);
/* Ends the prompts without an answer that are stored as a whole and whose cut,
 * if there was one, is made. */
void engine_end_prompts(struct engine *e);
/* Brings the one that is worked on to its end. False: there is none. */
bool engine_finish_cut(struct engine *e);
/* g's is not made. */
void engine_forget_cut(struct engine *e, struct gen *g);
/* Entries that each may look at in a step when both passes are worked on. */
uint64_t engine_slice(const struct engine *e);
/* Drops the session at rest that was least recently used, `spare` (or NULL)
 * only when it is the last. False: none is at rest. */
bool engine_drop_oldest(struct engine *e, const struct session *spare);
/* Drops sessions at rest until there may be one session more, `spare` last. */
void engine_bound_sessions(struct engine *e, const struct session *spare);

/* cap.c. Entries that g's session may hold by its own cap; UINT64_MAX: any. */
uint64_t engine_cap(const struct engine *e, const struct gen *g);
/* After a step: sessions give up what they have beyond their caps. */
void engine_cut_to_caps(struct engine *e);
/* After a cut in slices: what others have come to share meanwhile. */
void engine_cut_rest(struct engine *e, struct gen *g);
/* The same of one that is about to rest, whatever has ended it. */
void engine_cut_at_end(struct engine *e, struct gen *g);

/* reposition.c. Positions that are free behind the longest list after a
 * session was re-positioned: no chunk there is longer. */
uint32_t engine_context_margin(const struct engine *e);
/* Re-positions sessions that the planned step would lead past the context. */
void engine_reposition(struct engine *e);

/* gates.c. While answers only go on, the model leaves the gates of their tokens
 * to later. They are finished before anything else is done: by the engine's
 * loop, for every round that is more than such a step, and again by whoever
 * reads log_beta, or moves, copies, shares or frees entries. */
void engine_finish_gates(struct engine *e);
/* What is due is a step of such answers and nothing else, as far as can be
 * told before it is planned. */
bool engine_goes_on(const struct engine *e);

/* plan.c. Sets `take` of all running requests. All room is there then. */
void engine_plan(struct engine *e);

/* step.c */
void engine_step(struct engine *e);
void engine_update_kv(const struct engine *e, struct gen *g);

#endif
