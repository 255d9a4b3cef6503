#include "server/completions.h"

#include <stdio.h>

#include <string.h>

#include "server/params.h"

struct ctx {
    struct tokens *out;
    const struct prompt *prompt;
    uint32_t n_vocab;
    struct api_error *e;
};

static enum err from_module(const struct ctx *c, enum err rc,
                            const struct errmsg *m)
{
    if (rc != OK && rc != ERR_BUDGET)
        api_error_from(c->e, rc, m);
    return rc;
}

/* No prompt, or one without any token: a text begins. */
static enum err start(const struct ctx *c)
{
    int32_t token = prompt_start_token(c->prompt);
    if (token < 0)
        return api_error_set(c->e, 400, "invalid_value", "prompt",
                             "The prompt has no tokens, and this model has "
                             "none to start from.");
    return from_module(c, tokens_push(c->out, token), NULL);
}

static enum err read_text(const struct ctx *c, const cJSON *v)
{
    struct errmsg m = {0};
    enum err rc = prompt_from_text(c->prompt, v->valuestring,
                                   strlen(v->valuestring), c->out, &m);
    if (rc == OK && c->out->n == 0)
        return start(c);
    return from_module(c, rc, &m);
}

static enum err read_ids(const struct ctx *c, const cJSON *list)
{
    int i = 0;
    for (const cJSON *v = list->child; v; v = v->next, i++) {
        char param[API_PARAM_MAX];
        int64_t id = 0;
        snprintf(param, sizeof(param), "prompt[%d]", i);
        if (!cJSON_IsNumber(v))
            return params_wrong_type(c->e, param, "a token id", v);
        enum err rc = json_int64(v, &id);
        if (rc == ERR_INVAL)
            return params_wrong_type(c->e, param, "a whole token id", v);
        char shown[JSON_DOUBLE_MAX];
        json_format_double(shown, v->valuedouble);
        if (rc != OK || id < 0 || id >= (int64_t)c->n_vocab)
            return api_error_set(c->e, 400, "invalid_value", param,
                                 "Invalid '%s': %s is no token id; they go "
                                 "from 0 to %u.",
                                 param, shown, c->n_vocab - 1);
        rc = tokens_push(c->out, (int32_t)id);
        if (rc != OK)
            return from_module(c, rc, NULL);
    }
    return OK;
}

static enum err empty(const struct ctx *c, const char *param)
{
    return api_error_set(c->e, 400, "empty_array", param,
                         "Invalid '%s': empty array. Expected a prompt.",
                         param);
}

static enum err read_list(const struct ctx *c, const cJSON *list)
{
    const cJSON *first = list->child;
    if (!first)
        return empty(c, "prompt");
    if (cJSON_IsNumber(first))
        return read_ids(c, list);
    if (!cJSON_IsString(first) && !cJSON_IsArray(first))
        return params_wrong_type(c->e, "prompt[0]",
                                 "a string, a token id or an array of token "
                                 "ids",
                                 first);
    if (first->next) {
        /* Each of them must make sense before "not supported" is the answer:
         * a bad token id stays bad when batches come. */
        struct tokens unused = {0};
        struct ctx check = *c;
        enum err rc = OK;
        check.out = &unused;
        for (const cJSON *v = first; v && rc == OK; v = v->next) {
            if (cJSON_IsArray(v))
                rc = v->child ? read_ids(&check, v) : empty(c, "prompt");
            else if (!cJSON_IsString(v))
                rc =
                    params_wrong_type(c->e, "prompt", "an array of strings", v);
        }
        tokens_fini(&unused);
        if (rc != OK)
            return rc;
        return api_error_set(c->e, 400, "unsupported_parameter", "prompt",
                             "Several prompts in one request are not supported "
                             "by this server; send one request each.");
    }
    if (cJSON_IsString(first))
        return read_text(c, first);
    return first->child ? read_ids(c, first) : empty(c, "prompt[0]");
}

enum err completions_prompt(struct tokens *out, const cJSON *body,
                            const struct prompt *p, uint32_t n_vocab,
                            struct api_error *e)
{
    const struct ctx c = {out, p, n_vocab, e};
    const cJSON *v = json_get_set(body, "prompt");
    if (cJSON_IsArray(v))
        return read_list(&c, v);
    if (v && !cJSON_IsString(v))
        return params_wrong_type(e, "prompt", "a string or an array", v);
    return v ? read_text(&c, v) : start(&c);
}
