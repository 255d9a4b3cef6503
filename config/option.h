/* option.h - one row for each option, and what can be done with a row.
 *
 * The table of `ebb serve` is for the files of config/ only; rows and their
 * parser serve every command (flags.h). Names are as in the config file, with
 * underscores; a flag has hyphens, a variable EBB_ and capitals.
 */
#ifndef CONFIG_OPTION_H
#define CONFIG_OPTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "config/config.h"

enum option_type {
    OPT_STRING, /* char * */
    OPT_LIST,   /* struct config_list; the flag may repeat */
    OPT_WORDS,  /* struct config_list: every word up to the next flag, as it
                   is; the flag may repeat. Only in flags.h */
    OPT_BOOL,   /* bool */
    OPT_INT,    /* int64_t */
    OPT_REAL,   /* double; min and max are whole numbers */
    OPT_BYTES,  /* uint64_t */
    OPT_TIME,   /* int64_t milliseconds */
    OPT_CHOICE  /* int64_t: index into choices */
};

enum { OPTION_NAME_MAX = 32 };

struct option {
    const char *name;
    enum option_type type;
    size_t field; /* offset in struct config, or in a command's struct */
    const char *dflt;
    uint64_t min, max;          /* OPT_INT, _REAL, _BYTES, _TIME (ms) */
    bool or_zero;               /* OPT_REAL: 0 too, whatever min says */
    const char *const *choices; /* OPT_CHOICE: NULL-terminated */
    const char *word;           /* stands for the value in help: "SIZE" */
    bool is_flag_only;          /* not in the file: it names the file */
    const char *shown_dflt;     /* for help, where dflt says too little */
    const char *help;
};

/* The table; n rows. */
const struct option *option_table(size_t *n);

/* By config-file name; NULL where there is none. */
const struct option *option_find(const char *name);

/* The name in the table that needs the fewest changes to become `name`. */
const struct option *option_nearest(const char *name);

/* Steps (insert, remove, replace, swap neighbours) from a to b; both are read
 * up to OPTION_NAME_MAX characters. */
int option_distance(const char *a, const char *b);

/* Appends words broken into lines that begin with `lead`. */
MUST_CHECK enum err option_put_wrapped(struct buf *out, const char *lead,
                                       const char *text);
/* "--kv-type f16|q8_0|f32", "--any-model", "--port N". */
void option_usage(char *out, size_t size, const struct option *o);
/* The default as help shows it. */
const char *option_default(const struct option *o);

/* "--kv-memory", "EBB_KV_MEMORY". */
void option_flag(char out[OPTION_NAME_MAX + 8], const struct option *o);
void option_variable(char out[OPTION_NAME_MAX + 8], const struct option *o);

/* Sets the field of the struct from a text. where: how the user called it
 * ("--port"), for the sentence. A list is appended to. memory: what
 * percentages are of. */
MUST_CHECK enum err option_set(void *c, const struct option *o,
                               const char *text, uint64_t memory,
                               const char *where, struct errmsg *m);

/* The same from a command line. There an empty name or list is a script's
 * empty variable, and not meant; the file may say "" for what it leaves open.
 */
MUST_CHECK enum err option_set_flag(void *c, const struct option *o,
                                    const char *text, uint64_t memory,
                                    const char *where, struct errmsg *m);

/* Empties a list before another source fills it; does nothing to others. */
void option_clear_list(void *c, const struct option *o);

#endif
