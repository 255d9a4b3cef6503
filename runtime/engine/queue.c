#include "runtime/engine/queue.h"

#include <stdbool.h>
#include <stddef.h>

void queue_push(struct queue *q, struct queue_node *node)
{
    node->next = NULL;
    node->prev = q->last;
    node->passed = 0;
    if (q->last)
        q->last->next = node;
    else
        q->first = node;
    q->last = node;
    q->n++;
}

void queue_remove(struct queue *q, struct queue_node *node)
{
    if (node->prev)
        node->prev->next = node->next;
    else
        q->first = node->next;
    if (node->next)
        node->next->prev = node->prev;
    else
        q->last = node->prev;
    node->next = node->prev = NULL;
    q->n--;
}

void queue_admit(struct queue *q, queue_try_fn try, void *user)
{
    struct queue_node *blocked[QUEUE_LOOKAHEAD]; /* had no room just now */
    uint32_t n_blocked = 0, n_seen = 0;
    struct queue_node *node = q->first;

    while (node && n_seen < QUEUE_LOOKAHEAD) {
        struct queue_node *next = node->next;
        n_seen++;
        enum queue_verdict v = try(user, node);
        if (v == QUEUE_ALL_BUSY)
            return;
        if (v == QUEUE_STARTED) {
            queue_remove(q, node);
            for (uint32_t i = 0; i < n_blocked; i++)
                blocked[i]->passed++;
        } else if (v == QUEUE_NO_ROOM) {
            blocked[n_blocked++] = node;
        }
        for (uint32_t i = 0; i < n_blocked; i++) {
            if (blocked[i]->passed >= QUEUE_PASSES)
                return;
        }
        node = next;
    }
}
