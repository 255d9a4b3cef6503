/* gen.h - one request and its answer, as server and engine share it.
 *
 * Three parts. What both sides touch is under the mutex: the text that waits
 * to be read, and the status. What was asked is constant. The rest belongs to
 * the engine thread. Text and status reach the shared part only in
 * gen_deliver(), after the engine has published its statistics, so whoever
 * has seen an answer's end sees it in the statistics too. A reader that is
 * slow only makes the waiting text longer; the engine never waits for it.
 *
 * Life: engine_submit() makes it with two references, one for the server and
 * one for the engine; whoever lets go last frees it.
 *
 * Lock order: gen.mu, then the engine's mutex. notify_mu is held while the
 * server is called back, and no other of ours with it.
 */
#ifndef RUNTIME_ENGINE_GEN_H
#define RUNTIME_ENGINE_GEN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/evict.h"
#include "runtime/engine/queue.h"
#include "runtime/engine/sample.h"
#include "runtime/engine/schedule.h"
#include "runtime/engine/session.h"
#include "runtime/engine/stop.h"
#include "runtime/text/detok.h"

struct gen {
    pthread_mutex_t mu;
    struct buf out;           /* under mu: not yet read */
    struct gen_status status; /* under mu */
    atomic_bool is_cancelled;
    atomic_int n_refs;
    pthread_mutex_t notify_mu;
    bool is_released; /* under notify_mu: never call back again */

    /* Constant once submitted; the arrays go when the answer ends. */
    struct engine *engine; /* alive while status.state is not GEN_DONE */
    struct gen_request request;
    int64_t submitted_us;
    uint32_t max_tokens; /* of the answer, with all limits applied */
    uint32_t cap;        /* most tokens that will be stored */
    uint32_t floor;      /* entries per list that can never be taken */
    uint32_t guarantee;  /* units it is promised while it runs; 0: exact */

    /* The engine's. */
    struct gen *next_pending; /* submitted, not yet taken in */
    struct gen *next_changed; /* to be delivered */
    bool is_changed;
    struct queue_node node;
    struct session *session;
    struct gen_status now;
    struct buf staged; /* text to be delivered */
    struct sampler sampler;
    struct stop stop;
    struct detok detok;
    struct schedule_prefill prefill;
    uint32_t take;          /* rows in the step that is planned */
    struct evict_limit cut; /* that it waits for; session NULL: none */
    bool was_cut;           /* so, since its last row; once is enough */
    bool is_whole;          /* the units of its whole prompt are reserved */
    bool is_tried;          /* it was to be watched, whether it is or not */
    bool is_closed_up;      /* what stays of its prompt was moved together */
    int64_t last_token_us;
    uint64_t seed;
};

/* On OK r's memory is the gen's. ERR_NOMEM leaves it with the caller. */
MUST_CHECK enum err gen_new(struct gen **out, const struct gen_request *r);

/* Lets one reference go. */
void gen_unref(struct gen *g);

/* Frees what only a running request needs; engine thread. */
void gen_end(struct gen *g);

/* Shows the staged text and the present status, and calls back. ERR_NOMEM:
 * the text waits for the next time, nothing was shown. */
MUST_CHECK enum err gen_deliver(struct gen *g);

#endif
