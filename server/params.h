/* params.h - the fields of a request: one table says of each its type, its
 * range and whether it is built.
 *
 * null counts as absent; a wrong type or range is a 400 that names the field;
 * a field that would change the answer and is not built is a 400
 * unsupported_parameter; what is only a hint, and what nobody knows, is
 * ignored (docs/design, api 1.4 and 1.9).
 *
 * Threads: any.
 */
#ifndef SERVER_PARAMS_H
#define SERVER_PARAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "runtime/engine/engine.h"
#include "server/api_error.h"

enum params_route { PARAMS_CHAT = 1, PARAMS_TEXT = 2 };

/* What a request is judged by. */
struct params_server {
    uint32_t n_vocab;
    uint32_t max_context;                /* tokens */
    const struct forget_options *forget; /* and what requests get that say
                                            nothing */
    bool has_gates;
};

enum { PARAMS_PINS_MAX = 6 }; /* as many as there are roles */

struct params {
    struct gen_params gen;
    bool stream, include_usage;
    const char *pin[PARAMS_PINS_MAX]; /* roles, each once; borrowed from the
                                         body */
    uint32_t n_pins;
    bool continue_final_message;
    bool add_generation_prompt, has_add_generation_prompt;
};

/* Reads every field but the prompt and the model. Strings, biases and the
 * rules of forgetting go into *r, whose owner ends them with
 * gen_request_fini(), after an error too. ERR_INVAL: *e says which field and
 * why; ERR_NOMEM: *e is a 503. */
MUST_CHECK enum err params_read(struct params *out, struct gen_request *r,
                                const cJSON *body, enum params_route route,
                                const struct params_server *server,
                                struct api_error *e);

/* The first of the fields of a body, from the child `at` on, that means nothing
 * on this route; NULL: none does. */
const cJSON *params_find_unknown(const cJSON *at, enum params_route route);

/* "a string", "an array": what a value is, for sentences. */
const char *params_type_name(const cJSON *v);

/* 400 invalid_type. expected is like "an array of messages". */
enum err params_wrong_type(struct api_error *e, const char *param,
                           const char *expected, const cJSON *got);

#endif
