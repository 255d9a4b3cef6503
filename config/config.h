/* config.h - the settings of `ebb serve`: flags, variables and a file.
 *
 * Every option is one row of the table in config/option_table.c. From it come
 * the parsers, --help, docs/options.md and deploy/ebb.conf. A flag beats a
 * variable, a variable beats the file, the file beats the default; a list
 * given in one place replaces the one below it as a whole.
 *
 * struct config is plain: main copies what each module needs into that
 * module's own options struct. Nothing below server/ sees it.
 *
 * Threads: one at a time.
 */
#ifndef CONFIG_CONFIG_H
#define CONFIG_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

/* Of --session-tokens, and of what a request may ask for instead. */
enum { CONFIG_SESSION_TOKENS_MAX = 1 << 24 };

struct config_list {
    char **item; /* n owned strings */
    size_t n;
};

/* Strings are owned and never NULL after config_load(). */
struct config {
    char *config; /* file that was read, or "" */
    char *model;  /* path; the default model's cached file if not given */
    struct config_list alias;
    bool any_model;
    char *host;
    int64_t port;                /* 0: a free one */
    int64_t threads;             /* at least 1 */
    uint64_t kv_memory;          /* bytes */
    int64_t kv_type;             /* enum kv_type of base/kv_layout.h */
    int64_t max_context;         /* tokens; 0: what the model was trained for */
    int64_t max_running;         /* answers */
    int64_t max_queue;           /* requests */
    int64_t queue_timeout;       /* milliseconds; 0: none */
    char *gates;                 /* a file, "auto" or "none" */
    char *policy;                /* a name, or "": as the gates allow */
    char *admission;             /* a name, or "": the same */
    int64_t session_tokens;      /* entries per list on average; 0: no cap */
    int64_t min_tokens_per_head; /* entries */
    int64_t protect_sinks;       /* tokens */
    int64_t protect_recent;      /* tokens */
    double idle_decay;
    double merge_alpha, merge_min_mass;
    double merge_max_ratio; /* 0: no bound */
    double merge_min_cosine;
    bool merge_mean_ratio, watch_columns, reposition, per_head_sets;
    bool unbounded_context;
    bool deterministic;
    uint64_t max_body;              /* bytes */
    int64_t drain_timeout;          /* milliseconds */
    struct config_list cors_origin; /* none: loopback origins only */
    int64_t log_format;             /* enum log_format of base/log.h */
    int64_t log_level;              /* enum log_level of base/log.h */

    bool help;                  /* --help was given; the rest is not filled */
    bool watch_columns_is_off;  /* said so, not only left */
    struct config_list warning; /* sentences for the log */
};

/* Reads everything. argv are the words after `serve`. On OK the caller ends
 * *out with config_fini(). On error the sentence names the place, the wrong
 * word and the nearest known one; nothing is left to free. */
MUST_CHECK enum err config_load(struct config *out, int argc, char *const *argv,
                                struct errmsg *m);
void config_fini(struct config *c); /* a zeroed one is allowed */

/* Where config_load() looks, for tests: env is a NULL-terminated array of
 * NAME=value, memory is what percentages are of, 0 for unknown. */
struct config_sources {
    int argc;
    char *const *argv;
    char *const *env;
    uint64_t memory_available, memory_total;
    int cpus;
};
MUST_CHECK enum err config_load_from(struct config *out,
                                     const struct config_sources *s,
                                     struct errmsg *m);

/* Sets a string option to another value, as where a default becomes known. */
MUST_CHECK enum err config_set_string(char **field, const char *value);

/* Rules between options and against the machine; called by config_load().
 * memory_total 0: unknown. */
MUST_CHECK enum err config_check(const struct config *c, uint64_t memory_total,
                                 struct errmsg *m);

/* One JSON object with the value of every option, as GET /admin/config shows
 * it: sizes in bytes, times in milliseconds. No option holds a secret. */
MUST_CHECK enum err config_put_json(struct buf *out, const struct config *c);

/* The path of a file in the user's cache folder, where `make setup` and `make
 * texts` put things: $XDG_CACHE_HOME/ebb/NAME or $HOME/.cache/ebb/NAME. Whether
 * it is there is not looked at. ERR_NOTFOUND: neither variable is set. */
MUST_CHECK enum err config_cache_path(char *out, size_t size, const char *name,
                                      struct errmsg *m);

/* The text of `ebb serve --help`, of docs/options.md, and of the example file
 * deploy/ebb.conf. */
MUST_CHECK enum err config_put_help(struct buf *out);
MUST_CHECK enum err config_put_page(struct buf *out);
MUST_CHECK enum err config_put_example(struct buf *out);

#endif
