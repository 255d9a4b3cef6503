#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "gates/train/mix_internal.h"
#include "gates/train/mix_words.h"

enum {
    SPAN_MIN = 24, /* tokens of a span that comes again */
    SPAN_MAX = 64,
    BYTES_PER_TOKEN = 8, /* generous: documents are cut to length */
    LIST_LABELS = 2
};

const char *mix_kind_name(enum mix_kind kind)
{
    static const char *const names[MIX_KINDS] = {"plain", "chat", "recall",
                                                 "copy",  "list", "cloze"};
    return names[kind];
}

enum err mix_new(struct mix **out, const struct mix_options *o,
                 struct errmsg *m)
{
    uint64_t sum = 0;
    for (int i = 0; i < MIX_KINDS; i++)
        sum += o->share[i];
    if (sum == 0)
        return err_set(m, ERR_INVAL, "the shares of the mixture are all zero");
    struct mix *x = calloc(1, sizeof(*x));
    if (x == NULL)
        return err_set(m, ERR_NOMEM, "no memory for the training texts");
    x->o = *o;
    *out = x;
    return OK;
}

void mix_free(struct mix *x)
{
    if (x == NULL)
        return;
    for (size_t i = 0; i < x->n_texts; i++) {
        free(x->text[i].s);
        tokens_fini(&x->text[i].tokens);
    }
    free(x->text);
    tokens_fini(&x->scratch);
    buf_fini(&x->doc);
    free(x->answer);
    free(x);
}

enum err mix_add_text(struct mix *x, const char *text, size_t n,
                      struct errmsg *m)
{
    if (n < MIX_TEXT_MIN || n > MIX_TEXT_MAX)
        return err_set(m, ERR_INVAL,
                       "a training text has %zu bytes; %d to %d are needed", n,
                       MIX_TEXT_MIN, MIX_TEXT_MAX);
    enum err rc = utf8_check(text, n, m);
    if (rc != OK)
        return rc;
    struct text *grown = realloc(x->text, (x->n_texts + 1) * sizeof(*grown));
    if (grown == NULL)
        return err_set(m, ERR_NOMEM, "no memory for a text of %zu bytes", n);
    x->text = grown;
    struct text t = {0};
    struct buf copy = {0};
    rc = buf_append(&copy, text, n);
    if (rc == OK)
        rc = tokenizer_encode(x->o.tokenizer, text, n, 0, &t.tokens);
    if (rc == OK && t.tokens.n == 0)
        rc = ERR_INVAL;
    if (rc != OK) {
        buf_fini(&copy);
        tokens_fini(&t.tokens);
        return err_set(m, rc, "cannot tokenise a text of %zu bytes", n);
    }
    t.n = copy.len;
    t.s = buf_take(&copy);
    x->text[x->n_texts++] = t;
    x->n_tokens += t.tokens.n;
    return OK;
}

size_t mix_n_tokens(const struct mix *x)
{
    return x->n_tokens;
}

uint64_t mix_pick(struct maker *k, uint64_t n)
{
    return rng_below(&k->rng, n);
}

/* A text by its share of all tokens. */
static const struct text *pick_text(struct maker *k)
{
    uint64_t at = mix_pick(k, k->x->n_tokens);
    size_t i = 0;
    while (at >= k->x->text[i].tokens.n)
        at -= k->x->text[i++].tokens.n;
    return &k->x->text[i];
}

/* Up to n bytes of some text, beginning and ending at spaces. */
void mix_passage(struct maker *k, size_t n, const char **s, size_t *len)
{
    const struct text *t = pick_text(k);
    size_t from = mix_pick(k, t->n > n ? t->n - n : 1);
    size_t end = from + n < t->n ? from + n : t->n;
    while (from < end && t->s[from] != ' ' && t->s[from] != '\n')
        from++;
    while (from < end && (t->s[from] == ' ' || t->s[from] == '\n'))
        from++;
    size_t stop = end;
    while (stop > from && t->s[stop - 1] != ' ' && t->s[stop - 1] != '\n')
        stop--;
    *s = t->s + from;
    *len = stop > from ? stop - from : 0;
    while (*len > 0 && ((*s)[*len - 1] == ' ' || (*s)[*len - 1] == '\n'))
        (*len)--;
}

enum err mix_add_passage(struct maker *k, struct buf *b, size_t n)
{
    const char *s;
    size_t len;
    mix_passage(k, n, &s, &len);
    enum err rc = buf_append(b, s, len);
    return rc == OK ? buf_puts(b, "\n") : rc;
}

/* Tokens of some text from a random place on, text after text. */
void mix_copy_text(struct maker *k, int32_t *out, uint32_t n)
{
    uint32_t done = 0;
    while (done < n) {
        const struct text *t = pick_text(k);
        size_t most = t->tokens.n < n - done ? t->tokens.n : n - done;
        size_t from = mix_pick(k, t->tokens.n - most + 1);
        memcpy(out + done, t->tokens.id + from, most * sizeof(*out));
        done += (uint32_t)most;
    }
}

void mix_fill(struct maker *k, int32_t *out)
{
    const struct tokens *got = &k->x->scratch;
    size_t n = got->n < k->n_tokens ? got->n : k->n_tokens;
    memcpy(out, got->id, n * sizeof(*out));
    if (n < k->n_tokens)
        mix_copy_text(k, out + n, k->n_tokens - (uint32_t)n);
}

/* The document as tokens. */
static enum err finish_document(struct maker *k, int32_t *out)
{
    struct mix *x = k->x;
    x->scratch.n = 0;
    enum err rc = tokenizer_encode(x->o.tokenizer, x->doc.data, x->doc.len, 0,
                                   &x->scratch);
    if (rc == OK)
        mix_fill(k, out);
    return rc;
}

static enum err plain(struct maker *k, int32_t *out)
{
    mix_copy_text(k, out, k->n_tokens);
    return OK;
}

static enum err write_plainly(struct mix *x, const struct mix_turn *turn,
                              size_t n)
{
    buf_clear(&x->doc);
    enum err rc = OK;
    for (size_t i = 0; rc == OK && i < n; i++) {
        rc = buf_puts(&x->doc, turn[i].is_user ? "User: " : "Assistant: ");
        if (rc == OK)
            rc = buf_append(&x->doc, turn[i].text, turn[i].n);
        if (rc == OK)
            rc = buf_puts(&x->doc, "\n");
    }
    return rc != OK ? rc
                    : tokenizer_encode(x->o.tokenizer, x->doc.data, x->doc.len,
                                       0, &x->scratch);
}

enum err mix_put_turns(struct maker *k, const struct mix_turn *turn, size_t n)
{
    struct mix *x = k->x;
    const struct tokenizer *t = x->o.tokenizer;
    struct tokens *got = &x->scratch;
    got->n = 0;
    enum err rc = x->o.chat == NULL
                      ? write_plainly(x, turn, n)
                      : x->o.chat(x->o.chat_ctx, turn, n, got, k->m);
    /* The template may have begun with BOS, which stands before out. */
    if (rc == OK && tokenizer_adds_bos(t) && got->n > 0 &&
        got->id[0] == tokenizer_bos(t)) {
        got->n--;
        memmove(got->id, got->id + 1, got->n * sizeof(*got->id));
    }
    return rc;
}

enum { TURNS_MAX = 64 };

/* Passages of the texts as turns of one conversation. */
static enum err chat(struct maker *k, int32_t *out)
{
    struct mix_turn turn[TURNS_MAX];
    size_t n = 0, bytes = 0, want = (size_t)k->n_tokens * BYTES_PER_TOKEN;
    while (n < TURNS_MAX && (bytes < want || n % 2 == 1)) {
        turn[n].is_user = n % 2 == 0;
        mix_passage(k, 80 + mix_pick(k, 800), &turn[n].text, &turn[n].n);
        bytes += turn[n].n;
        n++;
    }
    enum err rc = mix_put_turns(k, turn, n);
    if (rc == OK)
        mix_fill(k, out);
    return rc;
}

/* Plain text in which spans of its first half come again in its second. */
static enum err copies(struct maker *k, int32_t *out)
{
    uint32_t n = k->n_tokens, half = n / 2;
    uint32_t most = half / 2 < SPAN_MAX ? half / 2 : SPAN_MAX;
    uint32_t least = most < SPAN_MIN ? most : SPAN_MIN;
    uint32_t times = 1 + (uint32_t)mix_pick(k, 3);
    mix_copy_text(k, out, n);
    for (uint32_t i = 0; i < times; i++) {
        uint32_t len = least + (uint32_t)mix_pick(k, most - least + 1);
        uint32_t from = (uint32_t)mix_pick(k, half - len);
        uint32_t to = half + (uint32_t)mix_pick(k, half - len);
        memcpy(out + to, out + from, len * sizeof(*out));
    }
    return OK;
}

/* Lines "word -> label" under a rule that the labels do not name. */
static enum err list(struct maker *k, int32_t *out)
{
    static const char *const labels[][LIST_LABELS] = {{"red", "blue"},
                                                      {"north", "south"},
                                                      {"salt", "sugar"},
                                                      {"open", "shut"},
                                                      {"sun", "moon"}};
    const char *const *label =
        labels[mix_pick(k, sizeof(labels) / sizeof(labels[0]))];
    bool by_table = mix_pick(k, 2) == 0;
    buf_clear(&k->x->doc);
    enum err rc = OK;
    for (size_t line = 0;
         rc == OK && k->x->doc.len < (size_t)k->n_tokens * BYTES_PER_TOKEN;
         line++) {
        bool is_value = mix_pick(k, 2) == 0;
        const char *w = is_value ? mix_values[mix_pick(k, mix_n_values)]
                                 : mix_keys[mix_pick(k, mix_n_keys)];
        size_t which = by_table ? (size_t)is_value : w[0] < 'K' ? 0 : 1;
        rc = buf_printf(&k->x->doc, "%s -> %s\n", w, label[which]);
        if (rc == OK && line % 8 == 7)
            rc = mix_add_passage(k, &k->x->doc, 100 + mix_pick(k, 300));
    }
    return rc == OK ? finish_document(k, out) : rc;
}

typedef enum err (*make_fn)(struct maker *, int32_t *);

static const make_fn makers[MIX_KINDS] = {plain,  chat, mix_recall,
                                          copies, list, mix_cloze};

/* None is marked at first. */
static bool make_room_for_answers(struct mix *x, size_t n)
{
    if (n > x->n_answer) {
        uint8_t *grown = realloc(x->answer, n);
        if (grown == NULL)
            return false;
        x->answer = grown;
        x->n_answer = n;
    }
    memset(x->answer, 0, n);
    return true;
}

const uint8_t *mix_answers(const struct mix *x)
{
    return x->answer;
}

enum err mix_sequence(struct mix *x, uint64_t step, uint32_t n_tokens,
                      int32_t *out, enum mix_kind *kind, struct errmsg *m)
{
    uint64_t mixed = x->o.seed;
    struct errmsg why = {""};
    struct maker k = {.x = x, .n_tokens = n_tokens, .m = &why};
    if (n_tokens < MIX_TOKENS_MIN || x->n_texts == 0)
        return err_set(m, ERR_INVAL,
                       "sequences of %u tokens from %zu texts cannot be made; "
                       "at least %d tokens and one text are needed",
                       n_tokens, x->n_texts, MIX_TOKENS_MIN);
    if (!make_room_for_answers(x, n_tokens))
        return err_set(m, ERR_NOMEM, "no memory for %u tokens", n_tokens);
    k.answer = x->answer;
    if (tokenizer_adds_bos(x->o.tokenizer)) {
        *out++ = tokenizer_bos(x->o.tokenizer);
        k.answer++;
        k.n_tokens--;
    }
    /* Seed and step are hashed one after the other, so that the streams of
     * neighbouring seeds are not shifted copies of each other. */
    mixed = rng_splitmix(&mixed) ^ step;
    rng_seed(&k.rng, mixed);
    uint64_t sum = 0;
    for (int i = 0; i < MIX_KINDS; i++)
        sum += x->o.share[i];
    uint64_t at = mix_pick(&k, sum);
    int which = 0;
    while (at >= x->o.share[which])
        at -= x->o.share[which++];
    if (kind != NULL)
        *kind = (enum mix_kind)which;
    enum err rc = makers[which](&k, out);
    if (rc != OK)
        return err_set(m, rc, "cannot make training sequence %llu (%s): %s",
                       (unsigned long long)step,
                       mix_kind_name((enum mix_kind)which),
                       why.text[0] != '\0' ? why.text : err_name(rc));
    return OK;
}
