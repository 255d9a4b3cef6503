/* evict_internal.h - what the three files of the eviction pass share.
 *
 * evict.c         passes over what sessions have for themselves; cuts
 * evict_take.c    what was chosen is merged and taken out
 * evict_shared.c  when that is at its floors: what sessions share
 */
#ifndef RUNTIME_ENGINE_EVICT_INTERNAL_H
#define RUNTIME_ENGINE_EVICT_INTERNAL_H

#include "runtime/engine/evict.h"

/* Lists that lose entries. */
struct job {
    uint32_t i; /* of the session in the pass */
    uint32_t i_list;
    uint32_t gone; /* chosen, then taken */
    double below;
    struct merge_counts merged;
};

/* What must give a share of k: see the header. */
struct group {
    uint64_t room;    /* entries above floors */
    double part;      /* room / weight */
    uint64_t share;   /* of k */
    double remainder; /* what rounding down took */
    uint32_t i;       /* session in the pass; the group of all: UINT32_MAX */
};

/* A beginning that several running sessions share: the units of n_users users
 * in the lists of `first`, its oldest user. `unit`, of list i_list, is one. */
struct shared {
    struct session *first;
    uint32_t n_users;
    uint32_t users; /* as in unit_users */
    uint32_t i_list;
    unit_id unit;
};

struct evict {
    struct evict_setup o;
    uint32_t n_lists; /* of a session */
    uint64_t bytes;
    struct select *select;
    struct select_input in;
    struct select_tenant *tenant;   /* [n_tenants] */
    struct select_session *session; /* [max_sessions] */
    struct session **of; /* [max_sessions] whose they are; NULL: it ended */
    uint64_t *share;     /* [max_sessions] of k, of its own group alone */
    enum engine_cause *cause;           /* [max_sessions] */
    struct group *group;                /* [max_sessions + 1] */
    struct job *job;                    /* [max_sessions * n_lists] */
    uint32_t n_jobs, next_job, end_job; /* the slice: [next_job, end_job) */
    bool is_chosen;                     /* what is under way is taking out */
    bool is_squeeze;                    /* takes from prompts itself */
    struct evict_limit *owed;           /* [max_sessions] */
    uint32_t n_owed;
    struct session **user;     /* [max_sessions] of one shared beginning */
    struct table **user_table; /* [max_sessions] theirs */
    struct shared *shared;     /* [max_sessions] */
    uint32_t *unit_users;      /* [n_units] a hash of a unit's running users */
    uint32_t n_shared;
    struct select_span *pin; /* of all users; grows as needed */
    size_t n_pins, max_pins;
    bool is_under_way;
    bool is_taking; /* what moves now is moved by this pass */
};

/* Adds a session to the pass that is being made up; *out is to be completed. */
struct select_session *evict_add(struct evict *e, struct session *s,
                                 enum engine_cause cause);

/* What its entries are ranked by. */
enum select_rank evict_rank_of(const struct session *s, enum engine_cause why);

/* Begins the selection over what was added; is_all: that is all sessions. */
void evict_start(struct evict *e, uint64_t k, bool is_all);

/* A job for each list that the selection takes entries from. */
void evict_find_jobs(struct evict *e);

/* Takes out what was chosen, for a cost of up to `most`, at least of one list.
 */
void evict_take_some(struct evict *e, uint64_t most, struct evict_result *r);

/* Merges what was chosen of one list, if it leaves by admission; it is still
 * to be taken out. Adds to *r. */
void evict_merge_list(struct evict *e, struct session *s, uint32_t i_list,
                      enum engine_cause cause, struct evict_result *r);

#endif
