#include "bench/eval/document.h"

#include <string.h>

#include "bench/eval/chats.h"
#include "bench/eval/document_internal.h"

/* The gate: below it the model fails even with everything in its cache, and
 * exact match would compare policies by noise (docs/design, evaluation 3.1);
 * which of several answers is more probable may still say something. */
static const struct {
    struct task_info info;
    maker_fn make;
} tasks[TASK_COUNT] = {
    [TASK_A] = {{"A", "the next 256 tokens of a book", false, false, 0},
                maker_next_text},
    [TASK_A2] = {{"A2", "a passage of a book again, with other names", false,
                  false, 0},
                 maker_retelling},
    [TASK_B1] = {{"B1", "one number told in a book", true, false, 0.6},
                 maker_passkey},
    [TASK_B2] = {{"B2", "eight facts told in a book", true, false, 0.6},
                 maker_facts},
    [TASK_C] = {{"C", "numbers out of a long list", true, false, 0.6},
                maker_lookup},
    [TASK_D] = {{"D", "names that stand for a number through others", true,
                 false, 0.6},
                maker_chains},
    [TASK_E1] = {{"E1", "what was said in a chat", true, false, 0.6},
                 maker_statements},
    [TASK_E2] = {{"E2", "what was said in a chat and then changed", true, true,
                  0.6},
                 maker_changes},
    [TASK_E3] = {{"E3", "what was said in a chat, compressed four times", true,
                  false, 0.6},
                 maker_stages},
    [TASK_F] = {{"F", "four passages of a book again", false, false, 0},
                maker_copies},
    [TASK_G] = {{"G", "examples of a rule", true, true, 0.6}, maker_examples},
    [TASK_I] = {{"I", "where people went in a book", true, true, 0.6},
                maker_moves},
    [TASK_CHATS] = {{"chats", "answers of your own conversations", false, false,
                     0},
                    NULL},
};

const struct task_info *task_info(enum task t)
{
    return &tasks[t].info;
}

enum err task_find(enum task *out, const char *name, size_t n)
{
    for (int t = 0; t < TASK_COUNT; t++)
        if (strlen(tasks[t].info.name) == n &&
            memcmp(tasks[t].info.name, name, n) == 0) {
            *out = (enum task)t;
            return OK;
        }
    return ERR_NOTFOUND;
}

/* Seeds of task and document are hashed in one after the other, so that no
 * two streams are shifted copies of each other. */
static uint64_t seed_for(uint64_t seed, uint64_t task, uint64_t i)
{
    uint64_t mixed = rng_splitmix(&seed) ^ task;
    mixed = rng_splitmix(&mixed) ^ i;
    return rng_splitmix(&mixed);
}

enum err document_deal(const struct document_options *o, enum task t,
                       size_t *n_docs)
{
    if (t == TASK_CHATS) {
        *n_docs = o->chats != NULL ? chats_count(o->chats) : 0;
        return OK;
    }
    return corpus_deal(o->corpus, o->n_tokens + DOCUMENT_TAIL,
                       seed_for(o->seed, (uint64_t)t, UINT64_MAX), n_docs);
}

/* The limits that the lab is made for. */
static enum err check(const struct document *d, struct errmsg *m)
{
    size_t n_fed = 0, n_given = 0;
    for (uint32_t i = 0; i < d->n_probes; i++) {
        const struct document_probe *p = &d->probe[i];
        n_fed += p->ids.n;
        n_given = p->first > n_given ? p->first : n_given;
    }
    if (n_fed > DOCUMENT_FED_MAX || n_given > DOCUMENT_GIVEN_MAX ||
        document_n_scored(d) > DOCUMENT_SCORED_MAX)
        return err_set(m, ERR_UNSUPPORTED,
                       "this tokenizer needs %zu tokens for the questions, %zu "
                       "for one of them, and %u for the answers; %d, %d and %d "
                       "are the limits",
                       n_fed, n_given, document_n_scored(d), DOCUMENT_FED_MAX,
                       DOCUMENT_GIVEN_MAX, DOCUMENT_SCORED_MAX);
    return OK;
}

enum err document_make(struct document *out, const struct document_options *o,
                       enum task t, uint32_t i, struct errmsg *m)
{
    if (t == TASK_CHATS)
        return chats_document(out, o->chats, i, m);
    struct document d = {0};
    struct errmsg why = {""};
    struct maker k = {.o = o, .window = corpus_window(o->corpus, i), .m = &why};
    rng_seed(&k.rng, seed_for(o->seed, (uint64_t)t, i));
    enum err rc = tasks[t].make(&d, &k);
    if (rc == OK)
        rc = check(&d, &why);
    if (rc != OK) {
        document_fini(&d);
        return err_set(m, rc, "cannot make document %u of task %s: %s", i,
                       tasks[t].info.name,
                       why.text[0] != '\0' ? why.text : err_name(rc));
    }
    *out = d;
    return OK;
}

void document_fini(struct document *d)
{
    tokens_fini(&d->prompt);
    for (uint32_t i = 0; i < DOCUMENT_PROBES_MAX; i++)
        tokens_fini(&d->probe[i].ids);
    *d = (struct document){0};
}

uint32_t document_n_scored(const struct document *d)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < d->n_probes; i++)
        sum += (uint32_t)d->probe[i].ids.n - d->probe[i].first;
    return sum;
}

enum err maker_append(struct tokens *out, const int32_t *id, size_t n)
{
    enum err rc = OK;
    for (size_t i = 0; i < n && rc == OK; i++)
        rc = tokens_push(out, id[i]);
    return rc;
}

enum err maker_start_text(struct document *d, const struct maker *k)
{
    if (!tokenizer_adds_bos(k->o->tokenizer))
        return OK;
    d->n_head = 1;
    return tokens_push(&d->prompt, tokenizer_bos(k->o->tokenizer));
}

enum err maker_encode(const struct maker *k, const char *text, size_t n,
                      struct tokens *out)
{
    return tokenizer_encode(k->o->tokenizer, text, n, 0, out);
}

enum err maker_text(const struct maker *k, const int32_t *id, size_t n,
                    struct buf *out)
{
    enum err rc = OK;
    for (size_t i = 0; i < n && rc == OK; i++) {
        size_t len = 0;
        const char *s = tokenizer_token_bytes(k->o->tokenizer, id[i], &len);
        rc = buf_append(out, s, len);
    }
    return rc;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n';
}

enum err maker_filler(const struct maker *k, struct buf *out)
{
    struct buf all = {0};
    enum err rc = maker_text(k, k->window, k->o->n_tokens, &all);
    size_t from = 0;
    while (from < all.len && !is_space(all.data[from]))
        from++;
    while (from < all.len && is_space(all.data[from]))
        from++;
    if (rc == OK)
        rc = buf_append(out, all.data + from, all.len - from);
    buf_fini(&all);
    return rc;
}

void maker_number(struct maker *k, char *out, int n_digits)
{
    for (int i = 0; i < n_digits; i++)
        out[i] = (char)('1' + rng_below(&k->rng, 9));
    out[n_digits] = '\0';
}

void maker_pick(struct maker *k, size_t *out, size_t n, size_t of)
{
    for (size_t i = 0; i < n; i++) {
        size_t j = 0;
        out[i] = rng_below(&k->rng, of);
        while (j < i && out[j] != out[i])
            j++;
        if (j < i)
            i--;
    }
}

size_t maker_common(const struct tokens *a, const struct tokens *b)
{
    size_t n = 0;
    while (n < a->n && n < b->n && a->id[n] == b->id[n])
        n++;
    return n;
}

enum err maker_pattern(struct buf *b, const char *pattern, const char *key,
                       const char *value)
{
    enum err rc = OK;
    for (const char *p = pattern; rc == OK && *p != '\0'; p++) {
        if (p[0] == '%' && (p[1] == 'K' || p[1] == 'V')) {
            rc = buf_puts(b, p[1] == 'K' ? key : value);
            p++;
        } else {
            rc = buf_putc(b, *p);
        }
    }
    return rc;
}

/* How far a sentence may move from its depth to the end of another. */
enum { SENTENCE_MAX = 600 };

/* Where what is planted at byte `at` goes: behind the sentence that it is in
 * or, when that is long, behind the word. */
static size_t next_break(const char *s, size_t n, size_t at)
{
    for (size_t i = at; i + 1 < n && i < at + SENTENCE_MAX; i++)
        if (strchr(".?!", s[i]) != NULL && is_space(s[i + 1]))
            return i + 1;
    while (at < n && !is_space(s[at]))
        at++;
    return at;
}

enum err maker_plant(struct buf *out, const struct buf *filler, size_t n,
                     const struct buf *sentence, const double *depth,
                     uint32_t n_sentences)
{
    const char *s = filler->data;
    size_t done = 0;
    enum err rc = OK;
    n = n < filler->len ? n : filler->len;
    while (n < filler->len && n > 0 && !is_space(s[n]))
        n--;
    for (uint32_t i = 0; i < n_sentences && rc == OK; i++) {
        size_t to = next_break(s, n, (size_t)(depth[i] * (double)n));
        to = to > done ? to : done;
        rc = buf_append(out, s + done, to - done);
        if (rc == OK)
            rc = buf_putc(out, ' ');
        if (rc == OK)
            rc = buf_append(out, sentence[i].data, sentence[i].len);
        done = to;
    }
    return rc == OK ? buf_append(out, s + done, n - done) : rc;
}
