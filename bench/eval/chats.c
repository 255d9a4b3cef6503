#include "bench/eval/chats.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/grow.h"
#include "base/hash.h"
#include "base/json.h"
#include "runtime/text/chat.h"

enum { FILE_MAX = 1 << 30, PREDICTED_MAX = 256 };

struct answer {
    const cJSON *messages; /* of its conversation */
    int i;                 /* its place in them */
};

struct chats {
    struct chats_options o;
    cJSON **line; /* [n_lines] */
    size_t n_lines, cap_lines;
    struct answer *answer; /* [n] */
    size_t n, cap, n_left_out;
    struct chats_passed passed;
    char hash[HASH_HEX];
};

void chats_free(struct chats *c)
{
    if (c == NULL)
        return;
    for (size_t i = 0; i < c->n_lines; i++)
        cJSON_Delete(c->line[i]);
    free(c->line);
    free(c->answer);
    free(c);
}

size_t chats_count(const struct chats *c)
{
    return c->n;
}

size_t chats_left_out(const struct chats *c)
{
    return c->n_left_out;
}

struct chats_passed chats_passed(const struct chats *c)
{
    return c->passed;
}

const char *chats_hash(const struct chats *c)
{
    return c->hash;
}

/* The tokens of the first n messages; open: an answer is to follow. */
static enum err render(const struct chats *c, const cJSON *messages, int n,
                       bool open, struct tokens *out, struct errmsg *m)
{
    cJSON *some = cJSON_CreateArray(), *x = messages->child;
    bool ok = some != NULL;
    for (int i = 0; i < n && ok; i++, x = x->next)
        ok = cJSON_AddItemReferenceToArray(some, x);
    struct prompt_chat chat = {.messages = some, .add_generation_prompt = open};
    out->n = 0;
    out->stop = c->o.stop;
    enum err rc = ok ? prompt_from_chat(c->o.prompt, &chat, out, m)
                     : err_set(m, ERR_NOMEM, "no memory for a conversation");
    cJSON_Delete(some);
    return rc;
}

/* What the template writes around an answer, as tokens. */
struct rendered {
    struct tokens before, whole; /* up to the answer, and with it */
    size_t n_answer; /* tokens of it behind the prompt, its end included */
};

static void rendered_fini(struct rendered *r)
{
    tokens_fini(&r->before);
    tokens_fini(&r->whole);
}

static size_t n_common(const struct tokens *a, const struct tokens *b)
{
    size_t n = 0;
    while (n < a->n && n < b->n && a->id[n] == b->id[n])
        n++;
    return n;
}

/* Up to the token that ends the turn: what the template writes after it, no
 * model has to say. 0: the turn is empty. */
static size_t answer_length(const struct chats *c, const struct tokens *whole,
                            size_t from)
{
    for (size_t i = from; i < whole->n; i++)
        if (tokenizer_is_eog(c->o.tokenizer, whole->id[i]))
            return i > from ? i + 1 - from : 0;
    return whole->n - from;
}

static enum err render_answer(const struct chats *c, const struct answer *a,
                              struct rendered *r, struct errmsg *m)
{
    enum err rc = render(c, a->messages, a->i + 1, false, &r->whole, m);
    if (rc == OK)
        r->n_answer = answer_length(c, &r->whole, r->before.n);
    return rc;
}

static enum err keep_answer(struct chats *c, const struct answer *a,
                            struct errmsg *m)
{
    struct answer *grown =
        grow_array(c->answer, &c->cap, c->n + 1, sizeof(*grown));
    if (grown == NULL)
        return err_set(m, ERR_NOMEM, "no memory for the conversations");
    c->answer = grown;
    c->answer[c->n++] = *a;
    return OK;
}

/* Where an answer is counted that is passed by; NULL: it is a document. */
static size_t *passed_by(struct chats *c, const struct rendered *r)
{
    if (r->before.n > c->o.max_tokens)
        return &c->passed.n_long;
    if (r->before.n < CHATS_TOKENS_MIN)
        return &c->passed.n_short;
    if (n_common(&r->before, &r->whole) < r->before.n)
        return &c->passed.n_apart; /* as when a template leaves thoughts out */
    return r->n_answer == 0 ? &c->passed.n_empty : NULL;
}

/* *is_long: its prompt is, and so are all that follow. */
static enum err add_answer(struct chats *c, const struct answer *a,
                           bool *is_long, struct errmsg *m)
{
    struct rendered r = {.n_answer = 0};
    enum err rc = render(c, a->messages, a->i, true, &r.before, m);
    *is_long = rc == OK && r.before.n > c->o.max_tokens;
    if (rc == OK && !*is_long)
        rc = render_answer(c, a, &r, m);
    size_t *passed = rc == OK ? passed_by(c, &r) : NULL;
    if (passed != NULL)
        ++*passed;
    else if (rc == OK)
        rc = keep_answer(c, a, m);
    rendered_fini(&r);
    return rc;
}

static bool has_words(const char *text)
{
    return text[strspn(text, " \t\r\n")] != '\0';
}

/* Whether there are words in a message: its content may be null, as of a call
 * of a tool, a text, or parts of which some are texts. */
static bool says_something(const cJSON *message)
{
    const cJSON *content = json_get_set(message, "content");
    if (content == NULL)
        return false;
    if (cJSON_IsString(content))
        return has_words(content->valuestring);
    for (const cJSON *part = content->child; part != NULL; part = part->next) {
        const char *text = cJSON_GetStringValue(json_get(part, "text"));
        if (text != NULL && has_words(text))
            return true;
    }
    return false;
}

/* Whether chat_render() takes the content of a message. */
static bool can_be_read(const cJSON *message)
{
    const cJSON *content = json_get_set(message, "content");
    if (content == NULL || cJSON_IsString(content))
        return true;
    if (!cJSON_IsArray(content))
        return false;
    for (const cJSON *part = content->child; part != NULL; part = part->next)
        if (chat_part_text(part) == NULL)
            return false;
    return true;
}

/* How far a conversation is good for documents. */
struct reach {
    bool is_unread; /* there was what no template reads */
    bool is_long;   /* there was a prompt that is too long */
};

static enum err add_message(struct chats *c, const struct answer *a,
                            const cJSON *message, struct reach *r,
                            struct errmsg *m)
{
    const char *role = cJSON_GetStringValue(json_get(message, "role"));
    if (role == NULL)
        return err_set(m, ERR_INVAL, "message %d has no role", a->i);
    r->is_unread = r->is_unread || !can_be_read(message);
    if (strcmp(role, "assistant") != 0)
        return OK;
    if (a->i == 0)
        c->passed.n_first++;
    else if (r->is_unread)
        c->passed.n_unread++;
    else if (!says_something(message))
        c->passed.n_empty++;
    else if (c->n == c->o.max_answers)
        c->n_left_out++;
    else if (r->is_long)
        c->passed.n_long++;
    else
        return add_answer(c, a, &r->is_long, m);
    return OK;
}

static enum err add_conversation(struct chats *c, const cJSON *line,
                                 bool has_nul, struct errmsg *m)
{
    const cJSON *messages =
        cJSON_IsArray(line) ? line : json_get(line, "messages");
    struct answer a = {.messages = messages};
    struct reach r = {.is_unread = has_nul};
    enum err rc = OK;
    if (!cJSON_IsArray(messages))
        return err_set(m, ERR_INVAL,
                       "it is no array of messages, nor an object with one "
                       "under \"messages\"");
    for (const cJSON *x = messages->child; x != NULL && rc == OK;
         x = x->next, a.i++)
        rc = add_message(c, &a, x, &r, m);
    return rc;
}

/* A text with a NUL in it is JSON, but none that json_parse() takes: writes
 * U+FFFD over the escapes, and says whether there were any. */
static bool replace_nuls(char *s, size_t n)
{
    bool any = false;
    for (size_t i = 0; i + 6 <= n; i++) {
        if (s[i] != '\\')
            continue;
        if (memcmp(s + i, "\\u0000", 6) == 0) {
            memcpy(s + i, "\\ufffd", 6);
            any = true;
        }
        i++; /* what is escaped may be a backslash */
    }
    return any;
}

static bool is_stopped(const struct chats *c)
{
    return c->o.stop != NULL && atomic_load(c->o.stop);
}

static enum err add_line(struct chats *c, char *s, size_t n, struct errmsg *m)
{
    cJSON *line = NULL;
    bool has_nul = replace_nuls(s, n);
    enum err rc = json_parse(&line, s, n, m);
    if (rc != OK)
        return rc;
    cJSON **grown =
        grow_array(c->line, &c->cap_lines, c->n_lines + 1, sizeof(*grown));
    if (grown == NULL) {
        cJSON_Delete(line);
        return err_set(m, ERR_NOMEM, "no memory for the conversations");
    }
    c->line = grown;
    c->line[c->n_lines++] = line;
    return add_conversation(c, line, has_nul, m);
}

static enum err read_file(struct chats *c, const char *path, struct errmsg *m)
{
    struct buf text = {0};
    struct errmsg why = {""};
    uint8_t digest[HASH_BYTES];
    size_t number = 0;
    enum err rc = file_read_all(&text, path, FILE_MAX, m);
    if (rc != OK)
        return rc;
    rc = hash_sha256(digest, text.data, text.len);
    if (rc == OK)
        hash_hex(c->hash, digest, sizeof(digest));
    for (size_t at = 0; at < text.len && rc == OK;) {
        char *line = text.data + at, *end = memchr(line, '\n', text.len - at);
        size_t n = end != NULL ? (size_t)(end - line) : text.len - at;
        number++;
        if (is_stopped(c))
            rc = err_set(&why, ERR_CANCELLED, "stopped");
        else if (strspn(line, " \t\r") < n)
            rc = add_line(c, line, n, &why);
        at += n + 1;
    }
    buf_fini(&text);
    return rc == OK
               ? OK
               : err_set(m, rc, "%s, line %zu: %s", path, number, why.text);
}

enum err chats_load(struct chats **out, const struct chats_options *o,
                    const char *path, struct errmsg *m)
{
    struct chats *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return err_set(m, ERR_NOMEM, "no memory for the conversations");
    c->o = *o;
    enum err rc = read_file(c, path, m);
    if (rc == OK)
        *out = c;
    else
        chats_free(c);
    return rc;
}

static enum err copy(struct tokens *out, const int32_t *id, size_t n)
{
    enum err rc = OK;
    for (size_t i = 0; i < n && rc == OK; i++)
        rc = tokens_push(out, id[i]);
    return rc;
}

/* The prompt's last token is the first of the probe: what predicts the answer
 * must run after the cache was compressed. */
enum err chats_document(struct document *out, const struct chats *c, size_t i,
                        struct errmsg *m)
{
    struct document d = {.n_probes = 1, .n_questions = 1};
    struct rendered r = {.n_answer = 0};
    const struct answer *a = &c->answer[i];
    assert(i < c->n);
    enum err rc = render(c, a->messages, a->i, true, &r.before, m);
    if (rc == OK)
        rc = render_answer(c, a, &r, m);
    if (rc == OK)
        rc = copy(&d.prompt, r.before.id, r.before.n - 1);
    if (rc == OK) {
        size_t n = r.n_answer < PREDICTED_MAX ? r.n_answer : PREDICTED_MAX;
        rc = copy(&d.probe[0].ids, r.whole.id + r.before.n - 1, n + 1);
    }
    d.probe[0].first = 1;
    rendered_fini(&r);
    if (rc == OK)
        *out = d;
    else
        document_fini(&d);
    return rc;
}
