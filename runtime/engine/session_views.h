/* session_views.h - each entry that sessions hold, counted once.
 *
 * Sessions that share a unit see a beginning of it: all but the last unit of a
 * list are full, and a beginning may end in one that is shared in part. So a
 * unit holds as many entries as the session sees that sees most of it. That is
 * kept for each unit, with the number of sessions that see so much; only when
 * the last of these goes and others see less must they be asked.
 *
 * Owns nothing but the counts in struct sessions. Engine thread.
 */
#ifndef RUNTIME_ENGINE_SESSION_VIEWS_H
#define RUNTIME_ENGINE_SESSION_VIEWS_H

#include "runtime/engine/session.h"

/* Slots of unit i of a list of so many entries that hold some. */
static inline uint32_t views_of(uint32_t len, uint32_t i)
{
    uint32_t left = len - i * KV_UNIT;
    return left < KV_UNIT ? left : KV_UNIT;
}

/* One more session sees n slots of a unit, or one fewer: s, which need not be
 * among all sessions any more, in its list i_list. */
void views_add(struct sessions *ss, unit_id u, uint32_t n);
void views_remove(struct sessions *ss, const struct session *s, uint32_t i_list,
                  unit_id u, uint32_t n);

/* All units of a list, or of all lists. */
void views_add_list(struct sessions *ss, struct session *s, uint32_t i_list);
void views_add_table(struct sessions *ss, struct session *s);
void views_remove_table(struct sessions *ss, const struct session *s);

/* Around a change of the units of a list from index `from` on, which nobody
 * must notice in between: as they were counted, and as they are now. The first
 * may come after the change as long as the ids are still in their places. */
void views_open_list(struct sessions *ss, struct session *s, uint32_t i_list,
                     uint32_t from);
void views_close_list(struct sessions *ss, struct session *s, uint32_t i_list);

/* As views_remove() for all units of a list that some users will see again as
 * before, or nobody will: others are not asked. */
void views_lift_list(struct sessions *ss, const struct kv_list *l);

#endif
