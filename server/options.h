/* options.h - what the server is told at start. Plain values: where they come
 * from (flags, variables, a file, the model) is main's business.
 *
 * Strings and pointers are borrowed and must outlive the server.
 */
#ifndef SERVER_OPTIONS_H
#define SERVER_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/engine/engine.h"
#include "runtime/engine/prompt.h"

enum { SERVER_NAME_MAX = 256 }; /* bytes of a model name */

struct server_options {
    const char *host;
    uint16_t port; /* 0: any free one */
    struct engine *engine;
    const struct prompt *prompt;
    /* The model as clients see it. */
    const char *model_id; /* never a path; at most SERVER_NAME_MAX bytes */
    const char *const *aliases;
    size_t n_aliases;
    bool any_model;        /* every name is accepted, none is needed */
    int64_t model_created; /* seconds since 1970; constant for a file */
    const char *arch;
    uint32_t n_layers, n_kv_heads;
    uint32_t max_context, n_vocab; /* as the engine says */
    uint64_t pool_tokens;          /* the same */
    struct forget_options forget;  /* what the engine was given */
    bool has_gates;
    const char *config_json; /* what GET /admin/config shows */
    const char *fingerprint; /* system_fingerprint of every answer */
    const char *version, *cpu, *backend;
    /* Pages that may read answers; none: those of this machine. */
    const char *const *cors_origins;
    size_t n_cors_origins;
    /* Limits. */
    uint64_t max_body; /* bytes of one request body */
    uint32_t max_queue;
};

#endif
