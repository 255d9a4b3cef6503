/* Fields of a request that need more than a type and a range. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/params_internal.h"

enum err params_unsupported_later(struct params_ctx *c, const char *name)
{
    if (!c->unsupported)
        c->unsupported = name;
    return OK;
}

static enum err no_memory(struct params_ctx *c)
{
    api_error_from(c->e, ERR_NOMEM, NULL);
    return ERR_NOMEM;
}

/* An empty stop would end every answer before it begins: it asks for
 * nothing. */
static enum err add_stop(struct params_ctx *c, const cJSON *v,
                         const char *param)
{
    if (!cJSON_IsString(v))
        return params_wrong_type(c->e, param, "a string", v);
    size_t n = strlen(v->valuestring);
    if (n == 0)
        return OK;
    if (n > GEN_STOP_BYTES_MAX)
        return api_error_set(c->e, 400, "string_above_max_length", param,
                             "Invalid '%s': a stop string has at most %d "
                             "bytes, this one has %zu.",
                             param, GEN_STOP_BYTES_MAX, n);
    char *copy = strdup(v->valuestring);
    if (!copy)
        return no_memory(c);
    c->r->stop[c->r->n_stops] = copy;
    c->r->stop_len[c->r->n_stops++] = n;
    return OK;
}

enum err params_read_stop(struct params_ctx *c, const cJSON *v)
{
    if (cJSON_IsString(v))
        return add_stop(c, v, "stop");
    if (!cJSON_IsArray(v))
        return params_wrong_type(c->e, "stop",
                                 "a string or an array of strings", v);
    int n = cJSON_GetArraySize(v);
    if (n > GEN_STOPS_MAX)
        return api_error_set(c->e, 400, "array_above_max_length", "stop",
                             "Invalid 'stop': array too long. Expected at most "
                             "%d strings, but got %d instead.",
                             GEN_STOPS_MAX, n);
    int i = 0;
    for (const cJSON *at = v->child; at; at = at->next, i++) {
        char param[API_PARAM_MAX];
        snprintf(param, sizeof(param), "stop[%d]", i);
        enum err rc = add_stop(c, at, param);
        if (rc != OK)
            return rc;
    }
    return OK;
}

/* The key of a bias: a token id as JSON writes numbers. -1: it is none. */
static int64_t token_of(const char *key)
{
    size_t n = strlen(key);
    if (n == 0 || n > 10 || (n > 1 && key[0] == '0'))
        return -1;
    for (size_t i = 0; i < n; i++)
        if (key[i] < '0' || key[i] > '9')
            return -1;
    return strtoll(key, NULL, 10);
}

static enum err add_bias(struct params_ctx *c, const cJSON *v)
{
    char shown[API_SHOWN_MAX + 4];
    int64_t token = token_of(v->string);
    api_error_shown(shown, v->string, strlen(v->string));
    if (token < 0 || token >= (int64_t)c->server->n_vocab)
        return api_error_set(c->e, 400, "invalid_value", "logit_bias",
                             "Invalid key in 'logit_bias': '%s' is no token "
                             "id; they go from 0 to %u.",
                             shown, c->server->n_vocab - 1);
    if (!cJSON_IsNumber(v))
        return api_error_set(c->e, 400, "invalid_type", "logit_bias",
                             "Invalid type for 'logit_bias': the bias of token "
                             "%s must be a number, but is %s.",
                             shown, params_type_name(v));
    char got[JSON_DOUBLE_MAX];
    json_format_double(got, v->valuedouble);
    if (!(v->valuedouble >= -100 && v->valuedouble <= 100))
        return api_error_set(c->e, 400,
                             v->valuedouble > 0 ? "decimal_above_max_value"
                                                : "decimal_below_min_value",
                             "logit_bias",
                             "Invalid 'logit_bias': the bias of token %s must "
                             "be from -100 to 100, but is %s.",
                             shown, got);
    c->r->bias[c->r->n_bias++] =
        (struct gen_bias){(int32_t)token, (float)v->valuedouble};
    return OK;
}

enum err params_read_bias(struct params_ctx *c, const cJSON *v)
{
    if (!cJSON_IsObject(v))
        return params_wrong_type(c->e, "logit_bias", "an object", v);
    int n = cJSON_GetArraySize(v);
    if (n == 0)
        return OK;
    if (n > GEN_BIAS_MAX)
        return api_error_set(c->e, 400, "array_above_max_length", "logit_bias",
                             "Invalid 'logit_bias': at most %d tokens, but got "
                             "%d.",
                             GEN_BIAS_MAX, n);
    c->r->bias = calloc((size_t)n, sizeof(*c->r->bias));
    if (!c->r->bias)
        return no_memory(c);
    for (const cJSON *at = v->child; at; at = at->next) {
        enum err rc = add_bias(c, at);
        if (rc != OK)
            return rc;
    }
    return OK;
}

enum err params_read_format(struct params_ctx *c, const cJSON *v)
{
    if (!cJSON_IsObject(v))
        return params_wrong_type(c->e, "response_format", "an object", v);
    const cJSON *type = json_get(v, "type");
    if (!cJSON_IsString(type))
        return params_wrong_type(c->e, "response_format.type", "a string",
                                 type);
    if (strcmp(type->valuestring, "text") == 0)
        return OK;
    if (strcmp(type->valuestring, "json_object") == 0)
        return params_unsupported_later(c, "response_format");
    if (strcmp(type->valuestring, "json_schema") == 0) {
        const cJSON *schema = json_get_set(v, "json_schema");
        if (!cJSON_IsObject(schema))
            return params_wrong_type(c->e, "response_format.json_schema",
                                     "an object", schema);
        return params_unsupported_later(c, "response_format");
    }
    char shown[API_SHOWN_MAX + 4];
    api_error_shown(shown, type->valuestring, strlen(type->valuestring));
    return api_error_set(c->e, 400, "invalid_value", "response_format.type",
                         "Invalid value: '%s'. Supported values are: 'text', "
                         "'json_object' and 'json_schema'.",
                         shown);
}

static enum err read_list(struct params_ctx *c, const cJSON *v,
                          const char *name)
{
    if (!cJSON_IsArray(v))
        return params_wrong_type(c->e, name, "an array", v);
    return v->child ? params_unsupported_later(c, name) : OK;
}

enum err params_read_tools(struct params_ctx *c, const cJSON *v)
{
    return read_list(c, v, "tools");
}

enum err params_read_functions(struct params_ctx *c, const cJSON *v)
{
    return read_list(c, v, "functions");
}

/* "none" and "auto" without tools are what happens anyway. */
static enum err read_choice(struct params_ctx *c, const cJSON *v,
                            const char *name)
{
    if (cJSON_IsObject(v))
        return params_unsupported_later(c, name);
    if (!cJSON_IsString(v))
        return params_wrong_type(c->e, name, "a string or an object", v);
    if (strcmp(v->valuestring, "none") == 0 ||
        strcmp(v->valuestring, "auto") == 0)
        return OK;
    if (strcmp(v->valuestring, "required") == 0)
        return params_unsupported_later(c, name);
    char shown[API_SHOWN_MAX + 4];
    api_error_shown(shown, v->valuestring, strlen(v->valuestring));
    return api_error_set(c->e, 400, "invalid_value", name,
                         "Invalid value: '%s'. Supported values are: 'none', "
                         "'auto' and 'required'.",
                         shown);
}

enum err params_read_tool_choice(struct params_ctx *c, const cJSON *v)
{
    return read_choice(c, v, "tool_choice");
}

enum err params_read_function_call(struct params_ctx *c, const cJSON *v)
{
    return read_choice(c, v, "function_call");
}

enum err params_read_modalities(struct params_ctx *c, const cJSON *v)
{
    if (!cJSON_IsArray(v))
        return params_wrong_type(c->e, "modalities", "an array", v);
    for (const cJSON *at = v->child; at; at = at->next) {
        if (!cJSON_IsString(at))
            return params_wrong_type(c->e, "modalities", "an array of strings",
                                     at);
        if (strcmp(at->valuestring, "text") != 0)
            return params_unsupported_later(c, "modalities");
    }
    return OK;
}

enum err params_read_generation_prompt(struct params_ctx *c, const cJSON *v)
{
    if (!cJSON_IsBool(v))
        return params_wrong_type(c->e, "add_generation_prompt", "a boolean", v);
    c->p->has_add_generation_prompt = true;
    c->p->add_generation_prompt = cJSON_IsTrue(v);
    return OK;
}

enum err params_read_min_tokens(struct params_ctx *c, const cJSON *v)
{
    int64_t n = 0;
    if (!cJSON_IsNumber(v) || json_int64(v, &n) != OK)
        return params_wrong_type(c->e, "min_tokens", "an integer", v);
    return n > 0 ? params_unsupported_later(c, "min_tokens") : OK;
}
