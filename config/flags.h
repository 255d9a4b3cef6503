/* flags.h - the flags of a command that has settings of its own, such as
 * `ebb gates train`: one table of rows (option.h), one plain struct.
 *
 * Flags only: no variables, no file. Values are written as for `ebb serve`.
 *
 * Threads: one at a time.
 */
#ifndef CONFIG_FLAGS_H
#define CONFIG_FLAGS_H

#include <stdbool.h>
#include <stddef.h>

#include "config/option.h"

struct flags {
    const char *usage; /* "ebb gates show FILE [options]" */
    const char *about; /* what the command does */
    const struct option *option;
    size_t n;
    /* Words that belong to no flag: appended to the struct config_list at
     * this offset. has_words false: there must be none. */
    bool has_words;
    size_t words;
};

/* Defaults (where not NULL), then argv; a list that is given replaces its
 * default. out points to the command's struct,
 * zeroed but for numbers that have no default here. On OK the caller ends it
 * with flags_fini(). On error the sentence names the wrong word and the nearest
 * known flag, and nothing is left to free. *wants_help: --help or -h was given;
 * the rest is then not filled. */
MUST_CHECK enum err flags_parse(void *out, bool *wants_help,
                                const struct flags *f, int argc,
                                char *const *argv, struct errmsg *m);
void flags_fini(void *out, const struct flags *f);

/* The text of --help. */
MUST_CHECK enum err flags_put_help(struct buf *out, const struct flags *f);

/* The name among n that is nearest to `name`, in steps of option_distance(). */
const char *flags_nearest(const char *name, const char *const *names, size_t n);

#endif
