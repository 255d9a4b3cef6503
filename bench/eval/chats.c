#include "bench/eval/chats.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/grow.h"
#include "base/hash.h"
#include "base/json.h"

enum { FILE_MAX = 1 << 30, PREDICTED_MAX = 256 };

struct answer {
    const cJSON *messages; /* of its conversation */
    int i;                 /* its place in them */
};

struct chats {
    const struct prompt *prompt;
    uint32_t max_tokens;
    cJSON **line; /* [n_lines] */
    size_t n_lines, cap_lines;
    struct answer *answer; /* [n] */
    size_t n, cap, n_passed;
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

size_t chats_n_passed(const struct chats *c)
{
    return c->n_passed;
}

const char *chats_hash(const struct chats *c)
{
    return c->hash;
}

/* The tokens of the first n messages; open: an answer is to follow. */
static enum err render(const struct chats *c, const cJSON *messages, int n,
                       bool open, struct tokens *out, struct errmsg *m)
{
    cJSON *some = cJSON_CreateArray();
    bool ok = some != NULL;
    for (int i = 0; i < n && ok; i++)
        ok = cJSON_AddItemReferenceToArray(some,
                                           cJSON_GetArrayItem(messages, i));
    struct prompt_chat chat = {.messages = some, .add_generation_prompt = open};
    out->n = 0;
    enum err rc = ok ? prompt_from_chat(c->prompt, &chat, out, m)
                     : err_set(m, ERR_NOMEM, "no memory for a conversation");
    cJSON_Delete(some);
    return rc;
}

static size_t n_common(const struct tokens *a, const struct tokens *b)
{
    size_t n = 0;
    while (n < a->n && n < b->n && a->id[n] == b->id[n])
        n++;
    return n;
}

/* Prompt and whole conversation up to answer a; false where the one does not
 * begin with the other, as when a template leaves thoughts out. */
static enum err render_both(const struct chats *c, const struct answer *a,
                            struct tokens *before, struct tokens *whole,
                            bool *fits, struct errmsg *m)
{
    enum err rc = render(c, a->messages, a->i, true, before, m);
    if (rc == OK)
        rc = render(c, a->messages, a->i + 1, false, whole, m);
    if (rc == OK)
        *fits = before->n >= CHATS_TOKENS_MIN && before->n <= c->max_tokens &&
                n_common(before, whole) == before->n && whole->n > before->n;
    return rc;
}

static enum err add_answer(struct chats *c, const struct answer *a,
                           struct errmsg *m)
{
    struct tokens before = {0}, whole = {0};
    bool fits = false;
    enum err rc = render_both(c, a, &before, &whole, &fits, m);
    tokens_fini(&before);
    tokens_fini(&whole);
    c->n_passed += rc == OK && !fits;
    if (rc != OK || !fits)
        return rc;
    struct answer *grown =
        grow_array(c->answer, &c->cap, c->n + 1, sizeof(*grown));
    if (grown == NULL)
        return err_set(m, ERR_NOMEM, "no memory for the conversations");
    c->answer = grown;
    c->answer[c->n++] = *a;
    return OK;
}

static enum err add_conversation(struct chats *c, const cJSON *line,
                                 struct errmsg *m)
{
    const cJSON *messages =
        cJSON_IsArray(line) ? line : json_get(line, "messages");
    enum err rc = OK;
    if (!cJSON_IsArray(messages))
        return err_set(m, ERR_INVAL,
                       "it is no array of messages, nor an object with one "
                       "under \"messages\"");
    int i = 0;
    for (const cJSON *x = messages->child; x != NULL && rc == OK;
         x = x->next, i++) {
        const char *role = cJSON_GetStringValue(json_get(x, "role"));
        struct answer a = {messages, i};
        if (role == NULL)
            rc = err_set(m, ERR_INVAL, "message %d has no role", i);
        else if (i > 0 && strcmp(role, "assistant") == 0)
            rc = add_answer(c, &a, m);
    }
    return rc;
}

static enum err add_line(struct chats *c, const char *s, size_t n,
                         struct errmsg *m)
{
    cJSON *line = NULL;
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
    return add_conversation(c, line, m);
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
        size_t n = strcspn(text.data + at, "\n");
        number++;
        if (n > 0)
            rc = add_line(c, text.data + at, n, &why);
        at += n + 1;
    }
    buf_fini(&text);
    return rc == OK
               ? OK
               : err_set(m, rc, "%s, line %zu: %s", path, number, why.text);
}

enum err chats_load(struct chats **out, const struct prompt *prompt,
                    const char *path, uint32_t max_tokens, struct errmsg *m)
{
    struct chats *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return err_set(m, ERR_NOMEM, "no memory for the conversations");
    c->prompt = prompt;
    c->max_tokens = max_tokens;
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
    struct tokens before = {0}, whole = {0};
    bool fits = false;
    assert(i < c->n);
    enum err rc = render_both(c, &c->answer[i], &before, &whole, &fits, m);
    if (rc == OK)
        rc = copy(&d.prompt, before.id, before.n - 1);
    if (rc == OK) {
        size_t n = whole.n - before.n;
        n = n < PREDICTED_MAX ? n : PREDICTED_MAX;
        rc = copy(&d.probe[0].ids, whole.id + before.n - 1, n + 1);
    }
    d.probe[0].first = 1;
    tokens_fini(&before);
    tokens_fini(&whole);
    if (rc == OK)
        *out = d;
    else
        document_fini(&d);
    return rc;
}
