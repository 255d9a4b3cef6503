/* queue.h - the order in which waiting requests are looked at.
 *
 * First come, first served, with a bounded exception: when the first request
 * needs more room than there is, later ones that fit may start before it, so
 * that free room is used, but each request is passed at most QUEUE_PASSES
 * times. After that nobody starts before it, and since every running answer
 * ends by its own limit, its room comes. A request that is held back only
 * because another is just computing the prompt that both share does not count
 * as passed: it waits for its own good and for no longer than that.
 *
 * Only the first QUEUE_LOOKAHEAD requests are looked at, so that a full queue
 * does not cost a search through all cached prefixes for each of its requests
 * at each change.
 *
 * One queue for one tenant. With several, each has its own, and the caller
 * chooses between their fronts.
 *
 * Links requests that are owned elsewhere. Threads: the engine thread only.
 */
#ifndef RUNTIME_ENGINE_QUEUE_H
#define RUNTIME_ENGINE_QUEUE_H

#include <stdint.h>

enum { QUEUE_PASSES = 16, QUEUE_LOOKAHEAD = 32 };

struct queue_node {
    struct queue_node *next, *prev;
    uint32_t passed; /* requests that came later and started before */
};

struct queue {
    struct queue_node *first, *last;
    uint32_t n;
};

enum queue_verdict {
    QUEUE_STARTED,  /* it has room: out of the queue */
    QUEUE_HELD,     /* not now, by choice */
    QUEUE_NO_ROOM,  /* not now */
    QUEUE_ALL_BUSY, /* nobody can start: stop looking */
};

typedef enum queue_verdict (*queue_try_fn)(void *user, struct queue_node *node);

void queue_push(struct queue *q, struct queue_node *node);
void queue_remove(struct queue *q, struct queue_node *node);

/* Offers waiting requests to try() in the order described above; those that
 * it starts are out of the queue before it is called for the next. */
void queue_admit(struct queue *q, queue_try_fn try, void *user);

#endif
