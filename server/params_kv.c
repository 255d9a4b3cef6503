/* The kv object of a request: what this one may forget (docs/design,
 * interface). A misspelt field would silently give a worse answer, so unlike
 * anywhere else an unknown one is refused. */
#include <stdio.h>
#include <string.h>

#include "config/config.h"
#include "server/chat.h"
#include "server/params_internal.h"

static const char *const names[] = {
    "policy",  "admission", "session_tokens", "pin",
    "session", "append",    "priority",
};

static enum err check_names(struct params_ctx *c, const cJSON *kv)
{
    for (const cJSON *at = kv->child; at; at = at->next) {
        size_t i = 0, n = sizeof(names) / sizeof(names[0]);
        while (i < n && strcmp(at->string, names[i]) != 0)
            i++;
        if (i < n)
            continue;
        char shown[API_SHOWN_MAX + 4], param[API_PARAM_MAX];
        api_error_shown(shown, at->string, strlen(at->string));
        snprintf(param, sizeof(param), "kv.%s", shown);
        return api_error_set(c->e, 400, "unknown_parameter", param,
                             "Unknown parameter: '%s'.", param);
    }
    return OK;
}

/* A name that means nothing, or nothing yet. */
static enum err bad_name(struct params_ctx *c, const char *param, enum err rc,
                         const struct errmsg *m)
{
    return api_error_set(c->e, 400,
                         rc == ERR_UNSUPPORTED ? "unsupported_value"
                                               : "invalid_value",
                         param, "Invalid value of '%s': %s.", param, m->text);
}

/* The client's text, in a form that can stand in a sentence. */
static enum err read_name(struct params_ctx *c, const char *param,
                          const cJSON *v, char shown[API_SHOWN_MAX + 4])
{
    if (!cJSON_IsString(v))
        return params_wrong_type(c->e, param, "a string", v);
    api_error_shown(shown, v->valuestring, strlen(v->valuestring));
    return OK;
}

static enum err no_gates(struct params_ctx *c, const char *param,
                         const char *what)
{
    return api_error_set(c->e, 400, "unsupported_value", param,
                         "'%s' ranks by retention gates, and this server has "
                         "none for its model.",
                         what);
}

static enum err read_policy(struct params_ctx *c, const cJSON *v)
{
    char name[API_SHOWN_MAX + 4];
    struct errmsg m;
    enum forget_policy *policy = &c->r->forget.policy;
    if (!v)
        return OK;
    enum err rc = read_name(c, "kv.policy", v, name);
    if (rc != OK)
        return rc;
    rc = forget_policy_find(policy, name, &m);
    if (rc != OK)
        return bad_name(c, "kv.policy", rc, &m);
    if (forget_policy_needs_gates(*policy) && !c->server->has_gates)
        return no_gates(c, "kv.policy", name);
    return OK;
}

static enum err read_admission(struct params_ctx *c, const cJSON *v)
{
    char name[API_SHOWN_MAX + 4];
    struct errmsg m;
    struct forget_rules *r = &c->r->forget;
    if (!v)
        return OK;
    enum err rc = read_name(c, "kv.admission", v, name);
    if (rc != OK)
        return rc;
    rc = forget_admission_find(&r->admission, name, r->policy, &m);
    if (rc != OK)
        return bad_name(c, "kv.admission", rc, &m);
    if (forget_needs_gates(r) && !c->server->has_gates)
        return no_gates(c, "kv.admission", name);
    rc = forget_check_fate(c->server->forget, r, &m);
    return rc == OK ? OK : bad_name(c, "kv.admission", rc, &m);
}

static enum err read_cap(struct params_ctx *c, const cJSON *v)
{
    static const char name[] = "kv.session_tokens";
    const struct forget_options *o = c->server->forget;
    int64_t n = 0;
    if (!v)
        return OK;
    enum err rc = params_whole(c, name, 0, CONFIG_SESSION_TOKENS_MAX, v, &n);
    if (rc != OK || n == 0) {
        c->r->forget.session_tokens = 0;
        return rc;
    }
    if (c->r->forget.policy == FORGET_EXACT)
        return api_error_set(c->e, 400, "invalid_value", name,
                             "'%s' is kept by forgetting, and the policy "
                             "exact never forgets.",
                             name);
    if (n < (int64_t)o->min_head)
        return api_error_set(c->e, 400, "integer_below_min_value", name,
                             "Invalid '%s': every head keeps %u tokens, so a "
                             "cap is at least that, or 0 for none; got %lld.",
                             name, o->min_head, (long long)n);
    if (o->unbounded_context && n >= (int64_t)c->server->max_context)
        return api_error_set(c->e, 400, "integer_above_max_value", name,
                             "Invalid '%s': a conversation without end must "
                             "keep less than the context of %u tokens; got "
                             "%lld.",
                             name, c->server->max_context, (long long)n);
    c->r->forget.session_tokens = (uint32_t)n;
    return OK;
}

static bool is_pinned(const struct params *p, const char *role)
{
    for (uint32_t i = 0; i < p->n_pins; i++)
        if (strcmp(p->pin[i], role) == 0)
            return true;
    return false;
}

static enum err add_pin(struct params_ctx *c, const cJSON *v, int i)
{
    char param[API_PARAM_MAX], shown[API_SHOWN_MAX + 4];
    snprintf(param, sizeof(param), "kv.pin[%d]", i);
    enum err rc = read_name(c, param, v, shown);
    if (rc != OK)
        return rc;
    if (!chat_is_role(v->valuestring))
        return api_error_set(c->e, 400, "invalid_value", param,
                             "Invalid value: '%s' is no role of a message.",
                             shown);
    /* There are no more roles than places. */
    if (!is_pinned(c->p, v->valuestring))
        c->p->pin[c->p->n_pins++] = v->valuestring;
    return OK;
}

static enum err read_pin(struct params_ctx *c, const cJSON *v)
{
    int i = 0;
    if (!v)
        return OK;
    if (!cJSON_IsArray(v))
        return params_wrong_type(c->e, "kv.pin", "an array of roles", v);
    if (v->child && c->route != PARAMS_CHAT)
        return api_error_set(c->e, 400, "unsupported_parameter", "kv.pin",
                             "'kv.pin' names roles of messages, and a text "
                             "completion has none.");
    for (const cJSON *at = v->child; at; at = at->next) {
        enum err rc = add_pin(c, at, i++);
        if (rc != OK)
            return rc;
    }
    return OK;
}

/* Explicit sessions are not built. Values that ask for nothing pass. */
static enum err read_session(struct params_ctx *c, const cJSON *kv)
{
    const cJSON *session = json_get_set(kv, "session");
    const cJSON *append = json_get_set(kv, "append");
    const cJSON *priority = json_get_set(kv, "priority");
    int64_t n = 0;
    if (session && !cJSON_IsString(session))
        return params_wrong_type(c->e, "kv.session", "a string", session);
    if (append && !cJSON_IsBool(append))
        return params_wrong_type(c->e, "kv.append", "a boolean", append);
    enum err rc =
        priority ? params_whole(c, "kv.priority", -10, 10, priority, &n) : OK;
    if (rc == OK && session)
        rc = params_unsupported_later(c, "kv.session");
    if (rc == OK && append && cJSON_IsTrue(append))
        rc = params_unsupported_later(c, "kv.append");
    if (rc == OK && n != 0)
        rc = params_unsupported_later(c, "kv.priority");
    return rc;
}

enum err params_read_kv(struct params_ctx *c, const cJSON *v)
{
    if (!cJSON_IsObject(v))
        return params_wrong_type(c->e, "kv", "an object", v);
    enum err rc = check_names(c, v);
    if (rc == OK)
        rc = read_policy(c, json_get_set(v, "policy"));
    if (rc == OK)
        rc = read_admission(c, json_get_set(v, "admission"));
    if (rc == OK)
        rc = read_cap(c, json_get_set(v, "session_tokens"));
    if (rc == OK)
        rc = read_pin(c, json_get_set(v, "pin"));
    return rc == OK ? read_session(c, v) : rc;
}
