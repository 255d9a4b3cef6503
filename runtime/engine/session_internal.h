/* session_internal.h - what the files behind session.h share.
 *
 * session.c        life of sessions: new, at rest, rolled back, dropped
 * session_units.c  their units in the pool
 * session_match.c  whom a new one shares its beginning with
 */
#ifndef RUNTIME_ENGINE_SESSION_INTERNAL_H
#define RUNTIME_ENGINE_SESSION_INTERNAL_H

#include "runtime/engine/session.h"

/* s, which runs, uses the unit from now on. */
void session_mark_live(struct sessions *ss, const struct session *s, unit_id u);

/* Before the reference of s goes, or is that of a session at rest. */
void session_unmark_live(struct sessions *ss, const struct session *s,
                         unit_id u);

/* The reference of s, which is at rest or unmarked, is about to go; it may be
 * the last. */
void session_forget_prefix(struct sessions *ss, const struct session *s,
                           unit_id u);

/* n units are reserved in the pool for s: counts them. */
void session_set_reserved(struct sessions *ss, struct session *s, uint32_t n);

#endif
