/* completions.h - the prompt of a /v1/completions request.
 *
 * Threads: any.
 */
#ifndef SERVER_COMPLETIONS_H
#define SERVER_COMPLETIONS_H

#include "base/err.h"
#include "base/json.h"
#include "runtime/engine/prompt.h"
#include "server/api_error.h"

/* The tokens of body.prompt, appended to *out: a string, an array of one
 * string, an array of token ids, an array of one such array; null or absent
 * is the start token. ERR_BUDGET: more than out->max, *e is untouched; all
 * other errors are told in *e. */
MUST_CHECK enum err completions_prompt(struct tokens *out, const cJSON *body,
                                       const struct prompt *p, uint32_t n_vocab,
                                       struct api_error *e);

#endif
