#include <string.h>

#include "bench/eval/document_internal.h"
#include "bench/eval/words.h"

/* Statements of a user about himself, with other turns behind each: text that
 * he reads aloud, and text that he gets for it. */
enum {
    STATEMENTS = 8,
    CHANGES = 4,
    STAGES = 4,
    FILLER_TURNS = 2, /* behind a statement and its reply */
    FILLER_MIN = 8    /* bytes of such a turn */
};

struct statement {
    const struct words_pattern *pattern;
    const char *what, *name;
    const char *old_name; /* of a change; NULL: it is none */
};

struct chat {
    struct statement said[STATEMENTS + CHANGES];
    double share[STATEMENTS + CHANGES]; /* of the filler that is behind each */
    uint32_t n;
    struct buf filler;
};

/* n bytes of the filler from *at on, to a whole word. */
static enum err put_filler(struct buf *out, const struct buf *filler,
                           size_t *at, size_t n)
{
    const char *s = filler->data;
    size_t from = *at, to = from + n < filler->len ? from + n : filler->len;
    while (to < filler->len && to > from && s[to] != ' ' && s[to] != '\n')
        to--;
    *at = to;
    while (from < to && (s[from] == ' ' || s[from] == '\n'))
        from++;
    return from < to ? buf_append(out, s + from, to - from)
                     : buf_puts(out, "Yes.");
}

static enum err fill_chat(void *ctx, struct talk *t, size_t n_bytes)
{
    const struct chat *c = ctx;
    enum err rc = OK;
    uint32_t turn = 0;
    size_t at = 0;
    for (uint32_t i = 0; i < c->n && rc == OK; i++) {
        const struct statement *s = &c->said[i];
        const char *pattern =
            s->old_name != NULL ? words_correction : s->pattern->fact;
        size_t n = (size_t)(c->share[i] * (double)n_bytes) / FILLER_TURNS;
        rc = maker_pattern(talk_turn(t, turn++), pattern, s->what, s->name);
        if (rc == OK)
            rc = buf_puts(talk_turn(t, turn++), "I see.");
        for (int f = 0; f < FILLER_TURNS && n >= FILLER_MIN && rc == OK; f++)
            rc = put_filler(talk_turn(t, turn++), &c->filler, &at, n);
    }
    return rc;
}

static void say(struct chat *c, struct maker *k, const struct statement *s)
{
    c->said[c->n] = *s;
    c->share[c->n++] = 0.5 + rng_double(&k->rng);
}

static void share_out(struct chat *c)
{
    double sum = 0;
    for (uint32_t i = 0; i < c->n; i++)
        sum += c->share[i];
    for (uint32_t i = 0; i < c->n; i++)
        c->share[i] /= sum;
}

/* Asks for what was said last; what was said before it is the wrong answer. */
static enum err ask(struct document *d, struct talk *t,
                    const struct statement *s)
{
    struct buf question = {0}, stem = {0};
    enum err rc = maker_pattern(&question, s->pattern->question, s->what, "");
    if (rc == OK)
        rc = maker_pattern(&stem, s->pattern->stem, s->what, "");
    struct talk_question q = {.ask = question.data,
                              .stem = stem.data,
                              .answer = s->name,
                              .wrong = {s->old_name},
                              .n_wrong = s->old_name != NULL};
    if (rc == OK)
        rc = talk_ask(d, t, &q);
    buf_fini(&question);
    buf_fini(&stem);
    return rc;
}

static enum err make(struct document *d, struct maker *k, uint32_t n_changes)
{
    struct talk t = {.k = k};
    struct chat c = {.n = 0};
    size_t what[STATEMENTS], name[STATEMENTS + CHANGES];
    maker_pick(k, what, STATEMENTS, words_n_relations);
    maker_pick(k, name, STATEMENTS + CHANGES, words_n_names);
    for (uint32_t i = 0; i < STATEMENTS + n_changes; i++) {
        const struct statement *old = &c.said[i % STATEMENTS];
        struct statement s = {.what = words_relations[what[i % STATEMENTS]],
                              .name = words_names[name[i]]};
        s.pattern = &words_sayings[rng_below(&k->rng, words_n_sayings)];
        s.old_name = i < STATEMENTS ? NULL : old->name;
        say(&c, k, &s);
    }
    share_out(&c);
    enum err rc = maker_filler(k, &c.filler);
    if (rc == OK)
        rc = talk_fit(d, &t, fill_chat, &c, c.filler.len);
    for (uint32_t i = 0; i < STATEMENTS && rc == OK; i++)
        rc = ask(d, &t, &c.said[i < n_changes ? STATEMENTS + i : i]);
    buf_fini(&c.filler);
    talk_fini(&t);
    return rc;
}

enum err maker_statements(struct document *d, struct maker *k)
{
    return make(d, k, 0);
}

enum err maker_changes(struct document *d, struct maker *k)
{
    return make(d, k, CHANGES);
}

enum err maker_stages(struct document *d, struct maker *k)
{
    d->n_stages = STAGES;
    return make(d, k, 0);
}
