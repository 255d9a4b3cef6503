/* outputs.h - the files that a run writes: none of them may be another one of
 * them, nor one that the run reads, by whatever names.
 *
 * Threads: one at a time.
 */
#ifndef BASE_OUTPUTS_H
#define BASE_OUTPUTS_H

#include <limits.h>
#include <stddef.h>

#include "base/err.h"

enum { OUTPUTS_MAX = 8 };

struct outputs {
    struct output {
        const char *option, *named; /* as the user says it; borrowed */
        char path[PATH_MAX];        /* what is written */
    } output[OUTPUTS_MAX];
    size_t n;
};

/* Adds what is written for `option FILE`: FILE itself, or what stands beside
 * it while the run lasts. On error *o is as it was.
 * ERR_INVAL: one that was added is the same file; the sentence has both. */
MUST_CHECK enum err outputs_add(struct outputs *o, const char *option,
                                const char *named, struct errmsg *m);
/* FILE and the suffix, beside the name that was given: there the next run looks
 * for it. */
MUST_CHECK enum err outputs_add_beside(struct outputs *o, const char *option,
                                       const char *named, const char *suffix,
                                       struct errmsg *m);
/* FILE.tmp, which becomes FILE (file_replace()). */
MUST_CHECK enum err outputs_add_tmp(struct outputs *o, const char *option,
                                    const char *named, struct errmsg *m);

/* ERR_INVAL: the file that is read for an option is one of them. */
MUST_CHECK enum err outputs_check(const struct outputs *o, const char *option,
                                  const char *path, struct errmsg *m);

#endif
