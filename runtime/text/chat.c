#include "runtime/text/chat.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"

struct chat_template {
    struct jinja_template *jinja;
    char *bos, *eos; /* NULL: the model has none */
    bool knows_developer, knows_tool_calls;
};

static const char chatml[] =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' "
    "+ message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% endif %}";

/* Stands behind an open last message while the template renders it. The blank
 * at its end tells whether the template strips messages. Private use
 * characters: no text has them by chance. */
static const char open_end[] = "\xEE\x80\x80"
                               "continue"
                               "\xEE\x80\x81 ";

/* What a render may use, besides a share of the size of its input: contents
 * are copied once for each step of their way through a template. */
enum {
    MEMORY_BASE = 64 * 1024 * 1024,
    MEMORY_FACTOR = 16,
    OUTPUT_BASE = 4 * 1024 * 1024,
    OUTPUT_FACTOR = 4
};

static enum err no_memory(struct errmsg *m)
{
    return err_set(m, ERR_NOMEM, "no memory for a chat");
}

enum err chat_template_new(struct chat_template **out,
                           const struct chat_spec *spec, struct errmsg *m)
{
    const char *text = spec->text != NULL ? spec->text : chatml;
    size_t n = spec->text != NULL ? spec->n_text : strlen(chatml);
    struct chat_template *ct = calloc(1, sizeof(*ct));
    if (ct == NULL)
        return no_memory(m);
    enum err rc = jinja_parse(&ct->jinja, text, n, m);
    if (rc != OK)
        goto out;
    ct->knows_developer = jinja_mentions(ct->jinja, "developer");
    ct->knows_tool_calls = jinja_mentions(ct->jinja, "tool_calls");
    rc = ERR_NOMEM;
    if (spec->bos != NULL && (ct->bos = strdup(spec->bos)) == NULL)
        goto out;
    if (spec->eos != NULL && (ct->eos = strdup(spec->eos)) == NULL)
        goto out;
    *out = ct;
    return OK;
out:
    chat_template_free(ct);
    return rc == ERR_NOMEM ? no_memory(m) : rc;
}

void chat_template_free(struct chat_template *ct)
{
    if (ct == NULL)
        return;
    jinja_free(ct->jinja);
    free(ct->bos);
    free(ct->eos);
    free(ct);
}

/* --- Building the variables ---
 *
 * The tree for the template refers to the caller's: only nodes are made, no
 * text is copied. Adding takes the node; NULL is passed on as no memory. */

static enum err add(cJSON *object, const char *key, cJSON *item,
                    struct errmsg *m)
{
    if (item != NULL && cJSON_AddItemToObjectCS(object, key, item))
        return OK;
    cJSON_Delete(item);
    return no_memory(m);
}

/* A node that shares everything below it with `item`. */
static cJSON *refer(const cJSON *item)
{
    cJSON *n = cJSON_CreateNull();
    if (n == NULL)
        return NULL;
    n->type = (item->type & ~cJSON_StringIsConst) | cJSON_IsReference;
    n->valuestring = item->valuestring;
    n->valuedouble = item->valuedouble;
    n->valueint = item->valueint;
    n->child = item->child;
    return n;
}

static cJSON *trusted(const char *text)
{
    cJSON *n = cJSON_CreateStringReference(text);
    if (n != NULL)
        n->type |= JINJA_TRUSTED;
    return n;
}

static enum err add_role(const struct chat_template *ct, cJSON *message,
                         const cJSON *role, struct errmsg *m)
{
    static const char *const roles[] = {"system",    "developer", "user",
                                        "assistant", "tool",      "function"};
    if (!cJSON_IsString(role))
        return err_set(m, ERR_INVAL, "the role of a message is no string");
    for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++) {
        if (strcmp(role->valuestring, roles[i]) != 0)
            continue;
        bool rename = i == 1 && !ct->knows_developer;
        return add(message, "role", trusted(roles[rename ? 0 : i]), m);
    }
    return add(message, "role", refer(role), m);
}

const char *chat_part_text(const cJSON *part)
{
    const cJSON *type = json_get(part, "type");
    const char *key = cJSON_IsString(type) ? type->valuestring : "text";
    if (strcmp(key, "text") != 0 && strcmp(key, "refusal") != 0)
        return NULL;
    const cJSON *text = json_get(part, key);
    return cJSON_IsString(text) ? text->valuestring : NULL;
}

/* Joins the parts. *out is a new string. */
static enum err join_parts(const cJSON *parts, struct buf *out,
                           struct errmsg *m)
{
    for (const cJSON *p = parts->child; p != NULL; p = p->next) {
        const char *text = chat_part_text(p);
        if (text == NULL)
            return err_set(m, ERR_INVAL,
                           "a content part of a message is no text");
        if (buf_puts(out, text) != OK)
            return no_memory(m);
    }
    return OK;
}

static enum err add_content(const struct chat_template *ct, cJSON *message,
                            const cJSON *source, bool stays_open,
                            struct errmsg *m)
{
    const cJSON *content = json_get_set(source, "content");
    const cJSON *calls = json_get_set(source, "tool_calls");
    if (content == NULL && !stays_open && ct->knows_tool_calls &&
        cJSON_IsArray(calls) && calls->child != NULL)
        return add(message, "content", cJSON_CreateNull(), m);
    if (cJSON_IsString(content) && !stays_open)
        return add(message, "content", refer(content), m);
    struct buf text = {0};
    enum err rc = OK;
    if (cJSON_IsString(content))
        rc = buf_puts(&text, content->valuestring);
    else if (cJSON_IsArray(content))
        rc = join_parts(content, &text, m);
    else if (content != NULL)
        rc = err_set(m, ERR_INVAL, "the content of a message is no text");
    if (rc == OK)
        rc = buf_puts(&text, stays_open ? open_end : "");
    if (rc == ERR_NOMEM)
        no_memory(m);
    if (rc == OK)
        rc = add(message, "content",
                 cJSON_CreateString(text.data != NULL ? text.data : ""), m);
    buf_fini(&text);
    return rc;
}

/* --- Tool calls --- */

/* The arguments as an object where that is what their text says. */
static cJSON *arguments(const cJSON *source)
{
    cJSON *parsed = NULL;
    if (!cJSON_IsString(source))
        return refer(source);
    const char *text = source->valuestring;
    if (text[strspn(text, " \t\r\n")] == '\0')
        return cJSON_CreateObject();
    if (json_parse(&parsed, text, strlen(text), NULL) == OK &&
        cJSON_IsObject(parsed))
        return parsed;
    cJSON_Delete(parsed);
    return refer(source);
}

/* The members of an object in their order, except for one, whose new value
 * is `instead`. Takes `instead`. */
static enum err copy_except(const cJSON *source, const char *key,
                            cJSON *instead, cJSON **out, struct errmsg *m)
{
    cJSON *copy = cJSON_CreateObject();
    enum err rc = copy != NULL ? OK : no_memory(m);
    for (const cJSON *c = source->child; c != NULL && rc == OK; c = c->next) {
        bool replaced = instead != NULL && strcmp(c->string, key) == 0;
        rc = add(copy, c->string, replaced ? instead : refer(c), m);
        if (replaced)
            instead = NULL;
    }
    cJSON_Delete(instead);
    if (rc != OK) {
        cJSON_Delete(copy);
        copy = NULL;
    }
    *out = copy;
    return rc;
}

static enum err add_tool_call(cJSON *calls, const cJSON *source,
                              struct errmsg *m)
{
    const cJSON *function = json_get(source, "function");
    const cJSON *args = json_get(function, "arguments");
    cJSON *new_function = NULL, *call = NULL;
    enum err rc = OK;
    if (args != NULL) {
        cJSON *object = arguments(args);
        if (object == NULL)
            return no_memory(m);
        rc = copy_except(function, "arguments", object, &new_function, m);
    }
    if (rc == OK && cJSON_IsObject(source))
        rc = copy_except(source, "function", new_function, &call, m);
    else if (rc == OK)
        call = refer(source);
    if (rc == OK && !cJSON_AddItemToArray(calls, call)) {
        cJSON_Delete(call);
        rc = no_memory(m);
    }
    return rc;
}

static enum err add_tool_calls(cJSON *message, const cJSON *source,
                               struct errmsg *m)
{
    if (!cJSON_IsArray(source))
        return add(message, "tool_calls", refer(source), m);
    cJSON *calls = cJSON_CreateArray();
    enum err rc = add(message, "tool_calls", calls, m);
    for (const cJSON *c = source->child; c != NULL && rc == OK; c = c->next)
        rc = add_tool_call(calls, c, m);
    return rc;
}

/* --- Messages --- */

/* OpenAI's newer name of the role that gives instructions means no other. */
static const char *kind_of(const char *role)
{
    return strcmp(role, "developer") == 0 ? "system" : role;
}

static bool is_to_mark(const struct chat_options *o, const cJSON *role)
{
    for (size_t i = 0; i < o->n_mark; i++)
        if (cJSON_IsString(role) &&
            strcmp(kind_of(role->valuestring), kind_of(o->mark[i])) == 0)
            return true;
    return false;
}

static enum err add_message(const struct chat_template *ct, cJSON *messages,
                            const cJSON *source, const struct chat_options *o,
                            struct errmsg *m)
{
    bool stays_open = o->continue_final_message && source->next == NULL;
    cJSON *message = cJSON_CreateObject();
    if (message == NULL || !cJSON_AddItemToArray(messages, message)) {
        cJSON_Delete(message);
        return no_memory(m);
    }
    if (!cJSON_IsObject(source))
        return err_set(m, ERR_INVAL, "a message is no object");
    enum err rc = OK;
    if (json_get(source, "role") == NULL)
        return err_set(m, ERR_INVAL, "a message has no role");
    if (is_to_mark(o, json_get(source, "role")))
        message->type |= JINJA_MARK;
    /* Members keep their order: templates may print a whole message. */
    for (const cJSON *c = source->child; c != NULL && rc == OK; c = c->next) {
        if (strcmp(c->string, "role") == 0)
            rc = add_role(ct, message, c, m);
        else if (strcmp(c->string, "content") == 0)
            rc = add_content(ct, message, source, stays_open, m);
        else if (strcmp(c->string, "tool_calls") == 0)
            rc = add_tool_calls(message, c, m);
        else
            rc = add(message, c->string, refer(c), m);
    }
    if (rc == OK && json_get(source, "content") == NULL)
        rc = add_content(ct, message, source, stays_open, m);
    return rc;
}

static enum err add_kwargs(cJSON *vars, const cJSON *kwargs, struct errmsg *m)
{
    enum err rc = OK;
    for (const cJSON *c = kwargs != NULL ? kwargs->child : NULL;
         c != NULL && rc == OK; c = c->next) {
        if (json_get(vars, c->string) != NULL)
            return err_set(m, ERR_INVAL, "chat_template_kwargs cannot set '%s'",
                           c->string);
        rc = add(vars, c->string, refer(c), m);
    }
    return rc;
}

static enum err add_vars(const struct chat_template *ct, cJSON *vars,
                         const cJSON *source, const struct chat_options *o,
                         struct errmsg *m)
{
    cJSON *messages = cJSON_CreateArray();
    enum err rc = add(vars, "messages", messages, m);
    for (const cJSON *c = source->child; c != NULL && rc == OK; c = c->next)
        rc = add_message(ct, messages, c, o, m);
    bool tools = cJSON_IsArray(o->tools) && o->tools->child != NULL;
    if (rc == OK)
        rc =
            add(vars, "tools", tools ? refer(o->tools) : cJSON_CreateNull(), m);
    if (rc == OK)
        rc = add(vars, "documents", cJSON_CreateNull(), m);
    if (rc == OK)
        rc = add(vars, "add_generation_prompt",
                 cJSON_CreateBool(o->add_generation_prompt), m);
    if (rc == OK && ct->bos != NULL)
        rc = add(vars, "bos_token", trusted(ct->bos), m);
    if (rc == OK && ct->eos != NULL)
        rc = add(vars, "eos_token", trusted(ct->eos), m);
    return rc == OK ? add_kwargs(vars, o->kwargs, m) : rc;
}

/* Bytes of text in a tree, keys included, and something for each node. */
static size_t tree_bytes(const cJSON *tree)
{
    enum { NODE = 32 };
    size_t n = 0;
    for (; tree != NULL; tree = tree->next) {
        n += NODE + (tree->string != NULL ? strlen(tree->string) : 0);
        n += cJSON_IsString(tree) ? strlen(tree->valuestring) : 0;
        n += tree_bytes(tree->child);
    }
    return n;
}

/* --- The open end of the last message --- */

static void cut_output(struct jinja_output *out, size_t n)
{
    out->text.len = n;
    out->text.data[n] = '\0';
    while (out->n_segments > 0 &&
           out->segments[out->n_segments - 1].offset >= n)
        out->n_segments--;
    if (out->n_segments > 0) {
        struct jinja_segment *last = &out->segments[out->n_segments - 1];
        if (last->offset + last->length > n)
            last->length = n - last->offset;
    }
}

static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Cuts where the mark stands; before the blanks in front of it if the
 * template strips messages. */
static enum err cut_open_end(struct jinja_output *out, struct errmsg *m)
{
    size_t n_mark = strlen(open_end) - 1; /* without its blank */
    const char *s = out->text.data;
    size_t n = out->text.len, at = SIZE_MAX;
    for (size_t from = 0; n - from >= n_mark;) {
        const char *hit = memmem(s + from, n - from, open_end, n_mark);
        if (hit == NULL)
            break;
        at = (size_t)(hit - s);
        from = at + n_mark;
    }
    if (at == SIZE_MAX)
        return err_set(m, ERR_INVAL,
                       "the last message cannot be continued: the chat "
                       "template does not show its text");
    if (s[at + n_mark] != ' ')
        while (at > 0 && is_blank(s[at - 1]))
            at--;
    cut_output(out, at);
    return OK;
}

static enum err check_options(const cJSON *messages,
                              const struct chat_options *o, struct errmsg *m)
{
    if (!cJSON_IsArray(messages) || messages->child == NULL)
        return err_set(m, ERR_INVAL, "a chat needs at least one message");
    if (o->continue_final_message && o->add_generation_prompt)
        return err_set(m, ERR_INVAL,
                       "add_generation_prompt and continue_final_message "
                       "cannot both be true");
    if (o->kwargs != NULL && !cJSON_IsObject(o->kwargs))
        return err_set(m, ERR_INVAL, "chat_template_kwargs is no object");
    return OK;
}

enum err chat_render(struct jinja_output *out, const struct chat_template *ct,
                     const cJSON *messages, const struct chat_options *options,
                     struct errmsg *m)
{
    jinja_output_fini(out);
    enum err rc = check_options(messages, options, m);
    if (rc != OK)
        return rc;
    cJSON *vars = cJSON_CreateObject();
    if (vars == NULL)
        return no_memory(m);
    rc = add_vars(ct, vars, messages, options, m);
    if (rc == OK) {
        size_t bytes = tree_bytes(vars);
        struct jinja_input in = {
            .vars = vars,
            .now = options->now,
            .limits = {.memory_bytes = MEMORY_BASE + MEMORY_FACTOR * bytes,
                       .output_bytes = OUTPUT_BASE + OUTPUT_FACTOR * bytes}};
        rc = jinja_render(out, ct->jinja, &in, m);
    }
    cJSON_Delete(vars);
    if (rc == OK && options->continue_final_message)
        rc = cut_open_end(out, m);
    if (rc != OK)
        jinja_output_fini(out);
    return rc;
}
