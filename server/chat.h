/* chat.h - checks the messages of a chat request.
 *
 * Every shape that OpenAI's clients send is let through (content as a string
 * or as text parts, or none beside tool calls); what the model cannot read,
 * such as images, and what makes no sense is refused by name. Making the
 * shapes uniform is the chat template's business.
 *
 * Threads: any.
 */
#ifndef SERVER_CHAT_H
#define SERVER_CHAT_H

#include <stdbool.h>

#include "base/err.h"
#include "base/json.h"
#include "server/api_error.h"

/* Is it a role that a message may have? */
bool chat_is_role(const char *name);

/* *out is borrowed from body, from whose messages empty lists of tool calls
 * are removed: templates ask whether there is one. ERR_INVAL: *e names the
 * message and the field. */
MUST_CHECK enum err chat_messages(const cJSON **out, cJSON *body,
                                  struct api_error *e);

#endif
