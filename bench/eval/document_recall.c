#include <string.h>

#include <cjson/cJSON.h>

#include "bench/eval/document_internal.h"
#include "bench/eval/words.h"

enum {
    FACTS = 8,
    VALUE_MAX = 32,
    NUMBER_DIGITS = 4,
    PASSKEY_DIGITS = 5,
    /* How far a fact may move from its depth to the end of a sentence. */
    SENTENCE_MAX = 600
};

struct fact {
    const struct words_pattern *pattern;
    const char *key;
    char value[VALUE_MAX];
};

/* A document while it is made. */
struct recall {
    struct maker *k;
    struct fact fact[FACTS]; /* in the order in which they are told */
    double depth[FACTS];     /* ascending, in [0, 1) */
    uint32_t n_facts;
    struct buf filler; /* text of the window */
    struct buf text;   /* the document: filler with facts */
};

static void put_number(struct recall *r, char *out, int n_digits)
{
    for (int i = 0; i < n_digits; i++)
        out[i] = (char)('1' + rng_below(&r->k->rng, 9));
    out[n_digits] = '\0';
}

/* n different numbers below `of`, in random order. */
static void pick_different(struct rng *rng, size_t *out, size_t n, size_t of)
{
    for (size_t i = 0; i < n; i++) {
        size_t j = 0;
        out[i] = rng_below(rng, of);
        while (j < i && out[j] != out[i])
            j++;
        if (j < i)
            i--;
    }
}

/* Facts at depths that are uniform over the text, one in each eighth. */
static void choose_facts(struct recall *r)
{
    struct rng *rng = &r->k->rng;
    size_t noun[FACTS], name[FACTS];
    pick_different(rng, noun, FACTS, words_n_nouns);
    pick_different(rng, name, FACTS, words_n_names);
    r->n_facts = FACTS;
    for (uint32_t i = 0; i < FACTS; i++) {
        struct fact *f = &r->fact[i];
        f->pattern = &words_patterns[rng_below(rng, words_n_patterns)];
        f->key = words_nouns[noun[i]];
        if (f->pattern->value_is_number)
            put_number(r, f->value, NUMBER_DIGITS);
        else
            memcpy(f->value, words_names[name[i]],
                   strlen(words_names[name[i]]) + 1);
        r->depth[i] = (i + rng_double(rng)) / FACTS;
    }
}

/* One number at one of ten depths. */
static void choose_passkey(struct recall *r)
{
    struct rng *rng = &r->k->rng;
    r->n_facts = 1;
    r->fact[0].pattern = &words_patterns[0];
    r->fact[0].key = words_nouns[rng_below(rng, words_n_nouns)];
    put_number(r, r->fact[0].value, PASSKEY_DIGITS);
    r->depth[0] = (double)rng_below(rng, 10) / 10;
}

static enum err put_pattern(struct buf *b, const char *pattern,
                            const struct fact *f)
{
    enum err rc = OK;
    for (const char *p = pattern; rc == OK && *p != '\0'; p++) {
        if (p[0] == '%' && (p[1] == 'K' || p[1] == 'V')) {
            rc = buf_puts(b, p[1] == 'K' ? f->key : f->value);
            p++;
        } else {
            rc = buf_putc(b, *p);
        }
    }
    return rc;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n';
}

/* The window as text, from its first whole word on. */
static enum err read_filler(struct recall *r)
{
    const struct maker *k = r->k;
    struct buf all = {0};
    enum err rc = OK;
    size_t n_tokens = k->o->n_tokens, from = 0;
    for (size_t i = 0; i < n_tokens && rc == OK; i++) {
        size_t n = 0;
        const char *s =
            tokenizer_token_bytes(k->o->tokenizer, k->window[i], &n);
        rc = buf_append(&all, s, n);
    }
    while (from < all.len && !is_space(all.data[from]))
        from++;
    while (from < all.len && is_space(all.data[from]))
        from++;
    if (rc == OK)
        rc = buf_append(&r->filler, all.data + from, all.len - from);
    buf_fini(&all);
    return rc;
}

/* Where a fact for byte `at` goes: behind the sentence that it is in, or, when
 * that is long, behind the word. */
static size_t next_break(const char *s, size_t n, size_t at)
{
    for (size_t i = at; i + 1 < n && i < at + SENTENCE_MAX; i++)
        if (strchr(".?!", s[i]) != NULL && is_space(s[i + 1]))
            return i + 1;
    while (at < n && !is_space(s[at]))
        at++;
    return at;
}

/* The first n bytes of the filler (to a whole word) with the facts in it. */
static enum err put_text(struct recall *r, size_t n)
{
    const char *s = r->filler.data;
    size_t done = 0;
    enum err rc = OK;
    while (n < r->filler.len && n > 0 && !is_space(s[n]))
        n--;
    buf_clear(&r->text);
    for (uint32_t i = 0; i < r->n_facts && rc == OK; i++) {
        size_t to = next_break(s, n, (size_t)(r->depth[i] * (double)n));
        to = to > done ? to : done;
        rc = buf_append(&r->text, s + done, to - done);
        if (rc == OK)
            rc = buf_putc(&r->text, ' ');
        if (rc == OK)
            rc = put_pattern(&r->text, r->fact[i].pattern->fact, &r->fact[i]);
        done = to;
    }
    return rc == OK ? buf_append(&r->text, s + done, n - done) : rc;
}

static bool add_message(cJSON *to, const char *role, const char *text)
{
    cJSON *message = cJSON_CreateObject();
    bool ok = message != NULL &&
              cJSON_AddStringToObject(message, "role", role) &&
              cJSON_AddStringToObject(message, "content", text) &&
              cJSON_AddItemToArray(to, message);
    if (!ok)
        cJSON_Delete(message);
    return ok;
}

/* A conversation that is being held: the document is told in one turn, and
 * asked about in another. */
static enum err render_chat(const struct maker *k, const char *text,
                            const char *question, const char *answer,
                            struct tokens *out)
{
    cJSON *messages = cJSON_CreateArray();
    bool ok = messages != NULL && add_message(messages, "user", text) &&
              add_message(messages, "assistant", "I have read the text.") &&
              add_message(messages, "user", question) &&
              add_message(messages, "assistant", answer);
    struct prompt_chat chat = {.messages = messages,
                               .continue_final_message = true};
    enum err rc =
        ok ? prompt_from_chat(k->o->prompt, &chat, out, k->m) : ERR_NOMEM;
    cJSON_Delete(messages);
    return rc;
}

static enum err render_plain(const struct maker *k, const char *text,
                             const char *question, const char *answer,
                             struct tokens *out)
{
    struct buf b = {0};
    enum err rc =
        buf_printf(&b, "%s\n\n%s\nAnswer: %s", text, question, answer);
    if (rc == OK)
        rc = tokenizer_encode(
            k->o->tokenizer, b.data, b.len,
            tokenizer_adds_bos(k->o->tokenizer) ? TOKENIZER_ADD_BOS : 0, out);
    buf_fini(&b);
    return rc;
}

static enum err render(const struct recall *r, const char *text,
                       const char *question, const char *answer,
                       struct tokens *out)
{
    out->n = 0;
    return r->k->o->prompt != NULL
               ? render_chat(r->k, text, question, answer, out)
               : render_plain(r->k, text, question, answer, out);
}

static size_t n_common(const struct tokens *a, const struct tokens *b)
{
    size_t n = 0;
    while (n < a->n && n < b->n && a->id[n] == b->id[n])
        n++;
    return n;
}

/* The document's tokens: those that a conversation begins with whatever is
 * asked. Written to d->prompt. */
static enum err render_prompt(struct document *d, const struct recall *r)
{
    struct tokens other = {0};
    enum err rc = render(r, r->text.data, "Why?", "", &d->prompt);
    if (rc == OK)
        rc = render(r, r->text.data, "0", "", &other);
    if (rc == OK)
        d->prompt.n = n_common(&d->prompt, &other);
    /* The template's beginning is what is there whatever the document. */
    if (rc == OK)
        rc = render(r, "0", "0", "", &other);
    if (rc == OK)
        d->n_head = (uint32_t)n_common(&d->prompt, &other);
    tokens_fini(&other);
    return rc;
}

/* As much filler as fits, by bisection over its bytes. */
static enum err fit_text(struct document *d, struct recall *r)
{
    size_t low = 0, high = r->filler.len + 1;
    while (high - low > 1) {
        size_t n = low + (high - low) / 2;
        enum err rc = put_text(r, n);
        if (rc == OK)
            rc = render_prompt(d, r);
        if (rc != OK)
            return rc;
        if (d->prompt.n <= r->k->o->n_tokens)
            low = n;
        else
            high = n;
    }
    enum err rc = put_text(r, low);
    if (rc == OK)
        rc = render_prompt(d, r);
    if (rc == OK && d->prompt.n > r->k->o->n_tokens)
        rc = err_set(r->k->m, ERR_INVAL,
                     "the facts alone have %zu tokens, the prompt may have %u",
                     d->prompt.n, r->k->o->n_tokens);
    return rc;
}

static enum err add_question(struct document *d, const struct recall *r,
                             const struct fact *f)
{
    struct document_probe *p = &d->probe[d->n_probes];
    struct tokens stem = {0};
    struct buf question = {0}, answer = {0};
    enum err rc = put_pattern(&question, f->pattern->question, f);
    if (rc == OK)
        rc = put_pattern(&answer, f->pattern->stem, f);
    if (rc == OK)
        rc = render(r, r->text.data, question.data, answer.data, &stem);
    if (rc == OK)
        rc = buf_printf(&answer, " %s", f->value);
    if (rc == OK)
        rc = render(r, r->text.data, question.data, answer.data, &p->ids);
    size_t n_given = n_common(&stem, &p->ids), n = d->prompt.n;
    if (rc == OK && (n_common(&d->prompt, &p->ids) < n || n_given <= n ||
                     n_given == p->ids.n))
        rc = err_set(r->k->m, ERR_UNSUPPORTED,
                     "the chat template or the tokenizer changes the document "
                     "with the question \"%s\"",
                     question.data);
    if (rc == OK) {
        memmove(p->ids.id, p->ids.id + n, (p->ids.n - n) * sizeof(*p->ids.id));
        p->ids.n -= n;
        p->first = (uint32_t)(n_given - n);
        d->n_probes++;
    }
    tokens_fini(&stem);
    buf_fini(&question);
    buf_fini(&answer);
    return rc;
}

static enum err make(struct document *d, struct maker *k,
                     void (*choose)(struct recall *r))
{
    struct recall r = {.k = k};
    choose(&r);
    enum err rc = read_filler(&r);
    if (rc == OK)
        rc = fit_text(d, &r);
    for (uint32_t i = 0; i < r.n_facts && rc == OK; i++)
        rc = add_question(d, &r, &r.fact[i]);
    buf_fini(&r.filler);
    buf_fini(&r.text);
    return rc;
}

enum err maker_passkey(struct document *d, struct maker *k)
{
    return make(d, k, choose_passkey);
}

enum err maker_facts(struct document *d, struct maker *k)
{
    return make(d, k, choose_facts);
}
