/* api_error.h - the one place where a fault becomes an HTTP status and the
 * error object that OpenAI clients read.
 *
 *   {"error":{"message":"...","type":"...","param":null,"code":null}}
 *
 * All four keys are always there (docs/design, api 1.5). Clients decide by
 * the status whether to try again, so what can never succeed is a 4xx and
 * what may is 429 or 503 with Retry-After.
 *
 * Threads: any; an error belongs to its caller.
 */
#ifndef SERVER_API_ERROR_H
#define SERVER_API_ERROR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "runtime/engine/engine.h"

enum { API_CODE_MAX = 48, API_PARAM_MAX = 128, API_SHOWN_MAX = 64 };

struct api_error {
    int status;                /* 0: no error */
    char code[API_CODE_MAX];   /* "": null */
    char param[API_PARAM_MAX]; /* "": null */
    struct errmsg message;
    const char *allow; /* Allow header of a 405; constant memory */
    bool close;        /* the connection can't go on after this answer */
    /* Set for a prompt beyond the context: extra members of the object. */
    bool has_numbers;
    uint32_t n_prompt_tokens, n_ctx;
};

/* Fills *e. code and param may be NULL. The type and Retry-After follow from
 * status and code. Returns ERR_INVAL, so that a check can end with
 * `return api_error_set(...)`. */
enum err api_error_set(struct api_error *e, int status, const char *code,
                       const char *param, const char *fmt, ...)
    PRINTF_LIKE(5, 6);

/* What an error code of our own modules means at the edge. */
void api_error_from(struct api_error *e, enum err code, const struct errmsg *m);

/* Why the engine refused. param names the field that holds the prompt. */
void api_error_refused(struct api_error *e, enum gen_refusal why, enum err code,
                       const struct errmsg *m, const char *param);

/* The engine ended the request after waited_us without an answer: true for the
 * finishes that are errors, and *e says which. */
bool api_error_finish(struct api_error *e, enum gen_finish finish,
                      uint64_t waited_us);

/* Numbers beside the message: what was asked and what there is. */
void api_error_sizes(struct api_error *e, uint32_t n_prompt_tokens,
                     uint32_t n_ctx);

/* The prompt does not fit a context of n_ctx tokens, and was counted only so
 * far. */
enum err api_error_context(struct api_error *e, const char *param,
                           uint32_t n_prompt_tokens, uint32_t n_ctx);

const char *api_error_type(const struct api_error *e);

/* Seconds for the Retry-After header; 0: none. */
int api_error_retry_after(const struct api_error *e);

/* Appends the whole body. */
MUST_CHECK enum err api_error_render(struct buf *out,
                                     const struct api_error *e);

/* Copies at most API_SHOWN_MAX printable bytes of what a client sent, cut at
 * a character, for use in a sentence; out holds API_SHOWN_MAX + 4 bytes. */
void api_error_shown(char *out, const char *s, size_t n);

#endif
