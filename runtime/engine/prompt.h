/* prompt.h - from what a client says to the tokens that the model reads.
 *
 * Chat template and tokenizer together, so that the server needs to know
 * neither. What users wrote never becomes a special token in a chat; in the
 * text of a plain completion it does (docs/design, interface).
 *
 * Borrows the tokenizer; owns the parsed template.
 *
 * Threads: a prompt does not change after it is made; any number of threads
 * may use it at once.
 */
#ifndef RUNTIME_ENGINE_PROMPT_H
#define RUNTIME_ENGINE_PROMPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "base/err.h"
#include "runtime/gguf/gguf.h"
#include "runtime/text/tokenizer.h"

struct prompt;

struct prompt_spec { /* the template is borrowed for prompt_new() only */
    const struct tokenizer *tokenizer;
    struct gguf_str chat_template; /* s NULL: ChatML where the vocabulary has
                                      its marks, else no chats */
};

struct prompt_chat {
    const cJSON *messages; /* an array that chat.h can render */
    const cJSON *tools;    /* an array, or NULL */
    const cJSON *kwargs;   /* an object of more variables, or NULL */
    bool add_generation_prompt;
    bool continue_final_message; /* the last message stays open */
    const char *const *pin;      /* roles; n_pin 0: none */
    size_t n_pin;
};

/* On OK the caller owns *out and ends it with prompt_free(). ERR_INVAL and
 * ERR_UNSUPPORTED: a template that we can't render right; the sentence says
 * why. */
MUST_CHECK enum err prompt_new(struct prompt **out,
                               const struct prompt_spec *spec,
                               struct errmsg *m);

/* The same with the template of a model file, which is not needed
 * afterwards. */
MUST_CHECK enum err prompt_from_gguf(struct prompt **out, const struct gguf *g,
                                     const struct tokenizer *t,
                                     struct errmsg *m);
void prompt_free(struct prompt *p); /* NULL is allowed */

/* The tokens of a chat, appended to *out; those that hold what messages of the
 * pinned roles say go into out->marked (which may be NULL). ERR_INVAL: the
 * template refuses these messages, in its own words; ERR_UNSUPPORTED: the model
 * has no template. On error *out is as it was. */
MUST_CHECK enum err prompt_from_chat(const struct prompt *p,
                                     const struct prompt_chat *chat,
                                     struct tokens *out, struct errmsg *m);

/* The tokens of a plain text, special tokens in it included. */
MUST_CHECK enum err prompt_from_text(const struct prompt *p, const char *text,
                                     size_t n, struct tokens *out,
                                     struct errmsg *m);

/* What a completion without a prompt starts from: BOS, else the token that
 * ends a text. -1: the model has neither. */
int32_t prompt_start_token(const struct prompt *p);

#endif
