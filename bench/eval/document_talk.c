#include <string.h>

#include <cjson/cJSON.h>

#include "bench/eval/document_internal.h"

void talk_fini(struct talk *t)
{
    for (uint32_t i = 0; i < TALK_TURNS_MAX; i++)
        buf_fini(&t->turn[i]);
}

struct buf *talk_turn(struct talk *t, uint32_t i)
{
    buf_clear(&t->turn[i]);
    t->n_turns = i + 1;
    return &t->turn[i];
}

static bool add_message(cJSON *to, bool is_user, const char *text)
{
    cJSON *message = cJSON_CreateObject();
    bool ok = message != NULL &&
              cJSON_AddStringToObject(message, "role",
                                      is_user ? "user" : "assistant") &&
              cJSON_AddStringToObject(message, "content", text) &&
              cJSON_AddItemToArray(to, message);
    if (!ok)
        cJSON_Delete(message);
    return ok;
}

static const char *text_of(const struct buf *b)
{
    return b->data != NULL ? b->data : "";
}

/* The turns, a question, and an answer that is left open. */
static enum err render_chat(const struct talk *t, const char *question,
                            const char *answer, struct tokens *out)
{
    cJSON *messages = cJSON_CreateArray();
    bool ok = messages != NULL;
    for (uint32_t i = 0; i < t->n_turns && ok; i++)
        ok = add_message(messages, i % 2 == 0, text_of(&t->turn[i]));
    ok = ok && add_message(messages, true, question) &&
         add_message(messages, false, answer);
    struct prompt_chat chat = {.messages = messages,
                               .continue_final_message = true};
    enum err rc =
        ok ? prompt_from_chat(t->k->o->prompt, &chat, out, t->k->m) : ERR_NOMEM;
    cJSON_Delete(messages);
    return rc;
}

static enum err render_plain(const struct talk *t, const char *question,
                             const char *answer, struct tokens *out)
{
    const struct tokenizer *tokenizer = t->k->o->tokenizer;
    unsigned flags = tokenizer_adds_bos(tokenizer) ? TOKENIZER_ADD_BOS : 0;
    struct buf b = {0};
    enum err rc = OK;
    for (uint32_t i = 0; i < t->n_turns && rc == OK; i++)
        rc = buf_printf(&b, "%s\n\n", text_of(&t->turn[i]));
    if (rc == OK)
        rc = buf_printf(&b, "%s\nAnswer: %s", question, answer);
    if (rc == OK)
        rc = tokenizer_encode(tokenizer, b.data, b.len, flags, out);
    buf_fini(&b);
    return rc;
}

static enum err render(const struct talk *t, const char *question,
                       const char *answer, struct tokens *out)
{
    out->n = 0;
    return t->k->o->prompt != NULL ? render_chat(t, question, answer, out)
                                   : render_plain(t, question, answer, out);
}

/* The document's tokens: those that the conversation begins with whatever is
 * asked. The template's beginning is what is there whatever was said. */
static enum err render_prompt(struct document *d, const struct talk *t)
{
    struct tokens other = {0};
    struct talk nothing = {.k = t->k, .n_turns = 2};
    enum err rc = render(t, "Why?", "", &d->prompt);
    if (rc == OK)
        rc = render(t, "0", "", &other);
    if (rc == OK)
        d->prompt.n = maker_common(&d->prompt, &other);
    if (rc == OK)
        rc = buf_puts(&nothing.turn[0], "0");
    if (rc == OK)
        rc = render(&nothing, "0", "", &other);
    if (rc == OK)
        d->n_head = (uint32_t)maker_common(&d->prompt, &other);
    tokens_fini(&other);
    talk_fini(&nothing);
    return rc;
}

static enum err try_amount(struct document *d, struct talk *t,
                           talk_fill_fn fill, void *ctx, size_t amount)
{
    enum err rc = fill(ctx, t, amount);
    return rc == OK ? render_prompt(d, t) : rc;
}

enum err talk_fit(struct document *d, struct talk *t, talk_fill_fn fill,
                  void *ctx, size_t most)
{
    size_t low = 0, high = most + 1;
    while (high - low > 1) {
        size_t amount = low + (high - low) / 2;
        enum err rc = try_amount(d, t, fill, ctx, amount);
        if (rc != OK)
            return rc;
        if (d->prompt.n <= t->k->o->n_tokens)
            low = amount;
        else
            high = amount;
    }
    enum err rc = try_amount(d, t, fill, ctx, low);
    if (rc == OK && d->prompt.n > t->k->o->n_tokens)
        rc = err_set(t->k->m, ERR_INVAL,
                     "what is asked for alone has %zu tokens, the prompt may "
                     "have %u",
                     d->prompt.n, t->k->o->n_tokens);
    return rc;
}

static enum err add_probe(struct document *d, const struct talk *t,
                          const struct talk_question *q, const char *value)
{
    struct document_probe *p = &d->probe[d->n_probes];
    struct tokens stem = {0};
    struct buf answer = {0};
    enum err rc = buf_printf(&answer, "%s %s", q->stem, value);
    if (rc == OK)
        rc = render(t, q->ask, q->stem, &stem);
    if (rc == OK)
        rc = render(t, q->ask, answer.data, &p->ids);
    size_t n_given = maker_common(&stem, &p->ids), n = d->prompt.n;
    if (rc == OK && (maker_common(&d->prompt, &p->ids) < n || n_given <= n ||
                     n_given == p->ids.n))
        rc = err_set(t->k->m, ERR_UNSUPPORTED,
                     "the chat template or the tokenizer changes the document "
                     "with the question \"%s\"",
                     q->ask);
    if (rc == OK) {
        memmove(p->ids.id, p->ids.id + n, (p->ids.n - n) * sizeof(*p->ids.id));
        p->ids.n -= n;
        p->first = (uint32_t)(n_given - n);
        p->is_wrong = value != q->answer;
        d->n_probes++;
    }
    tokens_fini(&stem);
    buf_fini(&answer);
    return rc;
}

enum err talk_ask(struct document *d, struct talk *t,
                  const struct talk_question *q)
{
    enum err rc = add_probe(d, t, q, q->answer);
    d->n_questions++;
    for (uint32_t i = 0; i < q->n_wrong && rc == OK; i++)
        rc = add_probe(d, t, q, q->wrong[i]);
    return rc;
}
