/* chat.h - from the messages of a chat to the text that its model reads.
 *
 * Gives a model's own template the variables that Hugging Face's transformers
 * would: messages, tools, documents, add_generation_prompt, bos_token,
 * eos_token, and what the caller adds. The text comes with the origin of each
 * byte (jinja.h): special tokens may be looked for in template bytes only.
 * Roles are template bytes, because they are checked against a list; all else
 * of a message is input.
 *
 * Threads: a template does not change after chat_template_new(); any number
 * of threads may render from one at the same time.
 */
#ifndef RUNTIME_TEXT_CHAT_H
#define RUNTIME_TEXT_CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "base/err.h"
#include "runtime/text/jinja.h"

struct chat_template; /* opaque: fields are in chat.c */

struct chat_spec {    /* borrowed for the time of chat_template_new() only */
    const char *text; /* the template; NULL: ChatML */
    size_t n_text;
    const char *bos, *eos; /* the tokens' text; NULL: the model has none */
};

struct chat_options {
    const cJSON *tools;  /* an array, or NULL */
    const cJSON *kwargs; /* an object of more variables, or NULL */
    bool add_generation_prompt;
    bool continue_final_message; /* the last message stays open: the text ends
                                    where its content does */
    /* Roles whose messages are to be found again: what they say is marked in
     * the output (jinja.h), as far as the template shows it. `system` and
     * `developer` are one role here. */
    const char *const *mark;
    size_t n_mark;
    int64_t now; /* seconds since 1970, for templates that show the date */
};

/* On OK the caller owns *out and ends it with chat_template_free(). Errors
 * are those of jinja_parse(). */
MUST_CHECK enum err chat_template_new(struct chat_template **out,
                                      const struct chat_spec *spec,
                                      struct errmsg *m);
void chat_template_free(struct chat_template *ct); /* NULL is allowed */

/* The text of one part of a content; NULL: it is no text, as an image. */
const char *chat_part_text(const cJSON *part);

/* Renders messages, an array of objects in OpenAI's format, into *out, whose
 * old content goes. Before the template sees them:
 *   - `developer` becomes `system` where the template does not know it;
 *   - an array of text parts becomes one string, nothing between the parts;
 *   - content that is null or absent becomes "", except beside tool calls of
 *     a template that knows them, where it is null;
 *   - arguments of tool calls that are JSON text of an object become that
 *     object ("": an empty one), which is what templates expect.
 * ERR_INVAL: the template refuses these messages (the sentence is its own),
 * or they are not what the above says, or a limit of jinja.h was reached. */
MUST_CHECK enum err chat_render(struct jinja_output *out,
                                const struct chat_template *ct,
                                const cJSON *messages,
                                const struct chat_options *options,
                                struct errmsg *m);

#endif
