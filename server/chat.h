/* chat.h - the messages of a chat request, checked and made uniform.
 *
 * What clients send in several shapes reaches the template in one: content is
 * a string (text parts are joined in order, with nothing between), a missing
 * content of an assistant is empty, the role developer is system, and the
 * arguments of a tool call are an object where their text is one.
 *
 * Threads: any.
 */
#ifndef SERVER_CHAT_H
#define SERVER_CHAT_H

#include "base/err.h"
#include "base/json.h"
#include "server/api_error.h"

/* Checks body.messages and rewrites it in place; *out is borrowed from body.
 * ERR_INVAL: *e names the message and the field, and body may be half
 * rewritten; ERR_NOMEM: *e is a 503. */
MUST_CHECK enum err chat_messages(const cJSON **out, cJSON *body,
                                  struct api_error *e);

#endif
