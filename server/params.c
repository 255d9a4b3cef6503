#include "server/params.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/params_internal.h"

enum { BOTH = PARAMS_CHAT | PARAMS_TEXT, N_MAX = 16 };

enum kind {
    KIND_BOOL,
    KIND_INT,         /* whole number in [min, max] */
    KIND_NUM,         /* any finite number in [min, max] */
    KIND_STRING,      /* type is checked, value ignored */
    KIND_OBJECT,      /* the same */
    KIND_HINT,        /* nothing is checked */
    KIND_UNSUPPORTED, /* any value but null, false, "", [] and {} */
    KIND_CUSTOM       /* read() does it all */
};

/* Where a value goes; NOWHERE only checks it. */
enum { NOWHERE = -1 };

typedef enum err (*read_fn)(struct params_ctx *c, const cJSON *v);

struct field {
    const char *name;
    unsigned routes;
    enum kind kind;
    double min, max;
    int offset; /* in struct params: bool, int32_t or float by kind */
    read_fn read;
};

#define AT(member) ((int)offsetof(struct params, member))

const char *params_type_name(const cJSON *v)
{
    if (!v)
        return "nothing";
    if (cJSON_IsString(v))
        return "a string";
    if (cJSON_IsNumber(v))
        return "a number";
    if (cJSON_IsBool(v))
        return "a boolean";
    if (cJSON_IsArray(v))
        return "an array";
    return cJSON_IsObject(v) ? "an object" : "null";
}

enum err params_wrong_type(struct api_error *e, const char *param,
                           const char *expected, const cJSON *got)
{
    return api_error_set(e, 400, "invalid_type", param,
                         "Invalid type for '%s': expected %s, but got %s "
                         "instead.",
                         param, expected, params_type_name(got));
}

enum err params_unsupported(struct api_error *e, const char *param)
{
    return api_error_set(e, 400, "unsupported_parameter", param,
                         "'%s' is not supported by this server.", param);
}

static enum err out_of_range(struct params_ctx *c, const struct field *f,
                             double v, bool above)
{
    char code[API_CODE_MAX], got[JSON_DOUBLE_MAX], limit[JSON_DOUBLE_MAX];
    json_format_double(got, v);
    json_format_double(limit, above ? f->max : f->min);
    snprintf(code, sizeof(code), "%s_%s_%s_value",
             f->kind == KIND_INT ? "integer" : "decimal",
             above ? "above" : "below", above ? "max" : "min");
    return api_error_set(c->e, 400, code, f->name,
                         "Invalid '%s': %s value %s %s, but got %s instead.",
                         f->name, f->kind == KIND_INT ? "integer" : "decimal",
                         above ? "above maximum: expected <="
                               : "below minimum: expected >=",
                         limit, got);
}

static enum err check_range(struct params_ctx *c, const struct field *f,
                            double v)
{
    if (v < f->min)
        return out_of_range(c, f, v, false);
    return v > f->max ? out_of_range(c, f, v, true) : OK;
}

static enum err decimal(struct params_ctx *c, const char *name, const cJSON *v)
{
    char got[JSON_DOUBLE_MAX];
    json_format_double(got, v->valuedouble);
    return api_error_set(c->e, 400, "invalid_type", name,
                         "Invalid type for '%s': expected an integer, but got "
                         "the decimal number %s.",
                         name, got);
}

static enum err read_int(struct params_ctx *c, const struct field *f,
                         const cJSON *v)
{
    int64_t n = 0;
    if (!cJSON_IsNumber(v))
        return params_wrong_type(c->e, f->name, "an integer", v);
    enum err rc = json_int64(v, &n);
    if (rc == ERR_INVAL)
        return decimal(c, f->name, v);
    /* Beyond int64: only the side matters. */
    double value = rc == OK ? (double)n : v->valuedouble;
    rc = check_range(c, f, value);
    if (rc == OK && f->offset != NOWHERE)
        *(int32_t *)(void *)((char *)c->p + f->offset) = (int32_t)n;
    return rc;
}

enum err params_whole(struct params_ctx *c, const char *name, int64_t min,
                      int64_t max, const cJSON *v, int64_t *out)
{
    const struct field f = {name,        BOTH,    KIND_INT, (double)min,
                            (double)max, NOWHERE, NULL};
    enum err rc = read_int(c, &f, v);
    return rc == OK ? json_int64(v, out) : rc;
}

static enum err read_num(struct params_ctx *c, const struct field *f,
                         const cJSON *v)
{
    if (!cJSON_IsNumber(v))
        return params_wrong_type(c->e, f->name, "a number", v);
    enum err rc = check_range(c, f, v->valuedouble);
    if (rc == OK && f->offset != NOWHERE)
        *(float *)(void *)((char *)c->p + f->offset) = (float)v->valuedouble;
    return rc;
}

static enum err read_bool(struct params_ctx *c, const struct field *f,
                          const cJSON *v)
{
    if (!cJSON_IsBool(v))
        return params_wrong_type(c->e, f->name, "a boolean", v);
    if (f->offset != NOWHERE)
        *(bool *)((char *)c->p + f->offset) = cJSON_IsTrue(v);
    return OK;
}

/* Values that ask for nothing. */
static bool is_empty(const cJSON *v)
{
    return cJSON_IsFalse(v) || (cJSON_IsString(v) && !v->valuestring[0]) ||
           ((cJSON_IsArray(v) || cJSON_IsObject(v)) && !v->child);
}

static enum err read_seed(struct params_ctx *c, const cJSON *v)
{
    int64_t n = 0;
    if (!cJSON_IsNumber(v))
        return params_wrong_type(c->e, "seed", "an integer", v);
    enum err rc = json_int64(v, &n);
    if (rc == ERR_UNSUPPORTED)
        return api_error_set(c->e, 400,
                             v->valuedouble > 0 ? "integer_above_max_value"
                                                : "integer_below_min_value",
                             "seed",
                             "Invalid 'seed': %.17g is beyond the 64-bit "
                             "integers.",
                             v->valuedouble);
    if (rc != OK)
        return decimal(c, "seed", v);
    c->p->gen.has_seed = true;
    c->p->gen.seed = n;
    return OK;
}

static enum err read_limit(struct params_ctx *c, const cJSON *v,
                           const char *name)
{
    /* A text may only be computed, a chat gets an answer. */
    double min = c->route == PARAMS_TEXT ? 0 : 1;
    /* More than any context is not an error: the answer ends there. */
    const struct field f = {name, BOTH, KIND_INT, min, 0x1p63, NOWHERE, NULL};
    int64_t n = 0;
    enum err rc = read_int(c, &f, v);
    if (rc != OK)
        return rc;
    c->p->gen.has_max_tokens = true;
    c->p->gen.max_tokens = json_int64(v, &n) == OK && n < INT32_MAX
                               ? (uint32_t)n
                               : (uint32_t)INT32_MAX;
    return OK;
}

static enum err read_max_tokens(struct params_ctx *c, const cJSON *v)
{
    return read_limit(c, v, "max_tokens");
}

static enum err read_max_completion_tokens(struct params_ctx *c, const cJSON *v)
{
    return read_limit(c, v, "max_completion_tokens");
}

/* Ranges come first, then whether the value is built. */
static enum err read_count(struct params_ctx *c, const cJSON *v,
                           const char *name, double max)
{
    const struct field f = {name, BOTH, KIND_INT, 1, max, NOWHERE, NULL};
    enum err rc = read_int(c, &f, v);
    if (rc != OK)
        return rc;
    return v->valuedouble > 1 ? params_unsupported_later(c, name) : OK;
}

static enum err read_n(struct params_ctx *c, const cJSON *v)
{
    return read_count(c, v, "n", N_MAX);
}

static enum err read_best_of(struct params_ctx *c, const cJSON *v)
{
    return read_count(c, v, "best_of", 20);
}

static enum err read_logprobs(struct params_ctx *c, const cJSON *v)
{
    const struct field flag = {"logprobs", BOTH,    KIND_BOOL, 0,
                               0,          NOWHERE, NULL};
    const struct field count = {"logprobs", BOTH,    KIND_INT, 0,
                                20,         NOWHERE, NULL};
    enum err rc = c->route == PARAMS_CHAT ? read_bool(c, &flag, v)
                                          : read_int(c, &count, v);
    if (rc != OK || cJSON_IsFalse(v))
        return rc;
    c->has_logprobs = true;
    return params_unsupported_later(c, "logprobs");
}

static enum err read_top_logprobs(struct params_ctx *c, const cJSON *v)
{
    const struct field f = {"top_logprobs", BOTH, KIND_INT, 0, 20,
                            NOWHERE,        NULL};
    enum err rc = read_int(c, &f, v);
    if (rc == OK && v->valuedouble > 0 && !c->has_logprobs)
        return api_error_set(c->e, 400, "invalid_value", "top_logprobs",
                             "'top_logprobs' needs 'logprobs' to be true.");
    return rc;
}

static enum err read_stream_options(struct params_ctx *c, const cJSON *v)
{
    const struct field usage = {"stream_options.include_usage",
                                BOTH,
                                KIND_BOOL,
                                0,
                                0,
                                AT(include_usage),
                                NULL};
    if (!cJSON_IsObject(v))
        return params_wrong_type(c->e, "stream_options", "an object", v);
    if (!c->p->stream)
        return api_error_set(c->e, 400, "invalid_value", "stream_options",
                             "'stream_options' is only allowed when 'stream' "
                             "is true.");
    const cJSON *wish = json_get_set(v, "include_usage");
    return wish ? read_bool(c, &usage, wish) : OK;
}

/* In the order in which they are read: `stream` and `logprobs` before what
 * depends on them, max_completion_tokens after max_tokens, which it beats. */
static const struct field fields[] = {
    {"stream", BOTH, KIND_BOOL, 0, 0, AT(stream), NULL},
    {"stream_options", BOTH, KIND_CUSTOM, 0, 0, 0, read_stream_options},
    {"temperature", BOTH, KIND_NUM, 0, 2, AT(gen.temperature), NULL},
    {"top_p", BOTH, KIND_NUM, 0, 1, AT(gen.top_p), NULL},
    {"min_p", BOTH, KIND_NUM, 0, 1, AT(gen.min_p), NULL},
    {"top_k", BOTH, KIND_INT, -1, INT32_MAX, AT(gen.top_k), NULL},
    {"presence_penalty", BOTH, KIND_NUM, -2, 2, AT(gen.presence_penalty), NULL},
    {"frequency_penalty", BOTH, KIND_NUM, -2, 2, AT(gen.frequency_penalty),
     NULL},
    {"repeat_penalty", BOTH, KIND_NUM, 0.01, 10, AT(gen.repetition_penalty),
     NULL},
    {"repetition_penalty", BOTH, KIND_NUM, 0.01, 10, AT(gen.repetition_penalty),
     NULL},
    {"seed", BOTH, KIND_CUSTOM, 0, 0, 0, read_seed},
    {"max_tokens", BOTH, KIND_CUSTOM, 0, 0, 0, read_max_tokens},
    {"max_completion_tokens", BOTH, KIND_CUSTOM, 0, 0, 0,
     read_max_completion_tokens},
    {"ignore_eos", BOTH, KIND_BOOL, 0, 0, AT(gen.ignore_eos), NULL},
    {"stop", BOTH, KIND_CUSTOM, 0, 0, 0, params_read_stop},
    {"logit_bias", BOTH, KIND_CUSTOM, 0, 0, 0, params_read_bias},
    {"n", BOTH, KIND_CUSTOM, 0, 0, 0, read_n},
    {"best_of", PARAMS_TEXT, KIND_CUSTOM, 0, 0, 0, read_best_of},
    {"logprobs", BOTH, KIND_CUSTOM, 0, 0, 0, read_logprobs},
    {"top_logprobs", PARAMS_CHAT, KIND_CUSTOM, 0, 0, 0, read_top_logprobs},
    {"response_format", BOTH, KIND_CUSTOM, 0, 0, 0, params_read_format},
    {"tools", BOTH, KIND_CUSTOM, 0, 0, 0, params_read_tools},
    {"tool_choice", BOTH, KIND_CUSTOM, 0, 0, 0, params_read_tool_choice},
    {"functions", BOTH, KIND_CUSTOM, 0, 0, 0, params_read_functions},
    {"function_call", BOTH, KIND_CUSTOM, 0, 0, 0, params_read_function_call},
    {"modalities", BOTH, KIND_CUSTOM, 0, 0, 0, params_read_modalities},
    {"kv", BOTH, KIND_CUSTOM, 0, 0, 0, params_read_kv},
    {"continue_final_message", PARAMS_CHAT, KIND_BOOL, 0, 0,
     AT(continue_final_message), NULL},
    {"add_generation_prompt", PARAMS_CHAT, KIND_CUSTOM, 0, 0, 0,
     params_read_generation_prompt},
    {"chat_template_kwargs", PARAMS_CHAT, KIND_OBJECT, 0, 0, NOWHERE, NULL},
    /* Hints with a type. */
    {"parallel_tool_calls", BOTH, KIND_BOOL, 0, 0, NOWHERE, NULL},
    {"store", BOTH, KIND_BOOL, 0, 0, NOWHERE, NULL},
    {"user", BOTH, KIND_STRING, 0, 0, NOWHERE, NULL},
    {"service_tier", BOTH, KIND_STRING, 0, 0, NOWHERE, NULL},
    {"reasoning_effort", BOTH, KIND_STRING, 0, 0, NOWHERE, NULL},
    {"safety_identifier", BOTH, KIND_STRING, 0, 0, NOWHERE, NULL},
    {"prompt_cache_key", BOTH, KIND_STRING, 0, 0, NOWHERE, NULL},
    {"metadata", BOTH, KIND_OBJECT, 0, 0, NOWHERE, NULL},
    /* These would change the answer. */
    {"echo", PARAMS_TEXT, KIND_UNSUPPORTED, 0, 0, NOWHERE, NULL},
    {"suffix", PARAMS_TEXT, KIND_UNSUPPORTED, 0, 0, NOWHERE, NULL},
    {"audio", BOTH, KIND_UNSUPPORTED, 0, 0, NOWHERE, NULL},
    {"previous_response_id", BOTH, KIND_UNSUPPORTED, 0, 0, NOWHERE, NULL},
    {"conversation", BOTH, KIND_UNSUPPORTED, 0, 0, NOWHERE, NULL},
    {"chat_template", BOTH, KIND_UNSUPPORTED, 0, 0, NOWHERE, NULL},
    {"documents", BOTH, KIND_UNSUPPORTED, 0, 0, NOWHERE, NULL},
    {"grammar", BOTH, KIND_UNSUPPORTED, 0, 0, NOWHERE, NULL},
    {"json_schema", BOTH, KIND_UNSUPPORTED, 0, 0, NOWHERE, NULL},
    {"structured_outputs", BOTH, KIND_UNSUPPORTED, 0, 0, NOWHERE, NULL},
    {"guided_json", BOTH, KIND_UNSUPPORTED, 0, 0, NOWHERE, NULL},
    {"guided_regex", BOTH, KIND_UNSUPPORTED, 0, 0, NOWHERE, NULL},
    {"guided_choice", BOTH, KIND_UNSUPPORTED, 0, 0, NOWHERE, NULL},
    {"guided_grammar", BOTH, KIND_UNSUPPORTED, 0, 0, NOWHERE, NULL},
    {"min_tokens", BOTH, KIND_CUSTOM, 0, 0, 0, params_read_min_tokens},
    {"stop_token_ids", BOTH, KIND_UNSUPPORTED, 0, 0, NOWHERE, NULL},
    {"bad_words", BOTH, KIND_UNSUPPORTED, 0, 0, NOWHERE, NULL},
    {"allowed_token_ids", BOTH, KIND_UNSUPPORTED, 0, 0, NOWHERE, NULL},
    {"use_beam_search", BOTH, KIND_UNSUPPORTED, 0, 0, NOWHERE, NULL},
    {"prompt_logprobs", BOTH, KIND_UNSUPPORTED, 0, 0, NOWHERE, NULL},
};

static bool is_known(const char *name, enum params_route route)
{
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        if (strcmp(fields[i].name, name) == 0)
            return (fields[i].routes & (unsigned)route) != 0;
    return strcmp(name, "model") == 0 ||
           strcmp(name, route == PARAMS_CHAT ? "messages" : "prompt") == 0;
}

const cJSON *params_find_unknown(const cJSON *at, enum params_route route)
{
    while (at && is_known(at->string, route))
        at = at->next;
    return at;
}

static enum err read_field(struct params_ctx *c, const struct field *f,
                           const cJSON *v)
{
    switch (f->kind) {
    case KIND_BOOL:
        return read_bool(c, f, v);
    case KIND_INT:
        return read_int(c, f, v);
    case KIND_NUM:
        return read_num(c, f, v);
    case KIND_STRING:
        return cJSON_IsString(v)
                   ? OK
                   : params_wrong_type(c->e, f->name, "a string", v);
    case KIND_OBJECT:
        return cJSON_IsObject(v)
                   ? OK
                   : params_wrong_type(c->e, f->name, "an object", v);
    case KIND_UNSUPPORTED:
        return is_empty(v) ? OK : params_unsupported_later(c, f->name);
    case KIND_CUSTOM:
        return f->read(c, v);
    case KIND_HINT:
        break;
    }
    return OK;
}

static void set_defaults(struct params *p, enum params_route route)
{
    memset(p, 0, sizeof(*p));
    p->gen.temperature = 1;
    p->gen.top_p = 1;
    p->gen.repetition_penalty = 1;
    p->add_generation_prompt = true;
    if (route == PARAMS_TEXT) {
        p->gen.has_max_tokens = true;
        p->gen.max_tokens = 16;
    }
}

static enum err check_together(struct params_ctx *c)
{
    struct params *p = c->p;
    /* -1 is another way to say off. */
    if (p->gen.top_k < 0)
        p->gen.top_k = 0;
    if (!p->continue_final_message)
        return OK;
    if (p->has_add_generation_prompt && p->add_generation_prompt)
        return api_error_set(c->e, 400, "invalid_value",
                             "continue_final_message",
                             "'continue_final_message' and "
                             "'add_generation_prompt' can't both be true.");
    p->add_generation_prompt = false;
    return OK;
}

enum err params_read(struct params *out, struct gen_request *r,
                     const cJSON *body, enum params_route route,
                     const struct params_server *server, struct api_error *e)
{
    struct params_ctx c = {
        .p = out, .r = r, .route = route, .server = server, .e = e};
    set_defaults(out, route);
    r->forget = server->forget->rules;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        const struct field *f = &fields[i];
        const cJSON *v = json_get_set(body, f->name);
        if (!v || !(f->routes & (unsigned)route))
            continue;
        enum err rc = read_field(&c, f, v);
        if (rc != OK)
            return rc;
    }
    /* Only now: a wrong value of a field that is not built is still named as
     * wrong. */
    if (c.unsupported)
        return params_unsupported(e, c.unsupported);
    enum err rc = check_together(&c);
    if (rc == OK)
        r->params = out->gen;
    /* Nothing of it is ever cut, whatever the server does with others. */
    if (r->forget.policy == FORGET_EXACT)
        r->forget = (struct forget_rules){.policy = FORGET_EXACT,
                                          .admission = {.off = true}};
    return rc;
}
