#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/eval/document_internal.h"
#include "bench/eval/words.h"

enum {
    FACTS = 8,
    PLANTED_MAX = 16,
    VALUE_MAX = 64,
    NUMBER_DIGITS = 4,
    PASSKEY_DIGITS = 5,
    CHAINS = 3,
    PEOPLE = 4,
    MOVES = 10,
    LOOKUPS = 8 /* lines of a list that are asked for */
};

static const char read_reply[] = "I have read the text.";

/* Sentences in a text, told in one turn and asked about later. */
struct recall {
    struct talk talk;
    struct buf filler;
    struct buf sentence[PLANTED_MAX];
    double depth[PLANTED_MAX]; /* ascending, in [0, 1) */
    uint32_t n;
};

/* Adds an empty sentence at a depth, to be written by the caller. */
static struct buf *add_sentence(struct recall *r, double depth)
{
    r->depth[r->n] = depth;
    return &r->sentence[r->n++];
}

static void recall_fini(struct recall *r)
{
    talk_fini(&r->talk);
    buf_fini(&r->filler);
    for (uint32_t i = 0; i < PLANTED_MAX; i++)
        buf_fini(&r->sentence[i]);
}

/* Sentence i of n somewhere in the i-th part of n. */
static double depth_of(struct recall *r, uint32_t i, uint32_t n)
{
    return (i + rng_double(&r->talk.k->rng)) / n;
}

static enum err fill_text(void *ctx, struct talk *t, size_t n_bytes)
{
    const struct recall *r = ctx;
    enum err rc = maker_plant(talk_turn(t, 0), &r->filler, n_bytes, r->sentence,
                              r->depth, r->n);
    return rc == OK ? buf_puts(talk_turn(t, 1), read_reply) : rc;
}

static enum err fit_text(struct document *d, struct recall *r)
{
    enum err rc = maker_filler(r->talk.k, &r->filler);
    return rc == OK ? talk_fit(d, &r->talk, fill_text, r, r->filler.len) : rc;
}

struct fact {
    const struct words_pattern *pattern;
    const char *key;
    char value[VALUE_MAX];
};

static enum err ask_fact(struct document *d, struct recall *r,
                         const struct fact *f)
{
    struct buf ask = {0}, stem = {0};
    enum err rc = maker_pattern(&ask, f->pattern->question, f->key, "");
    if (rc == OK)
        rc = maker_pattern(&stem, f->pattern->stem, f->key, "");
    struct talk_question q = {
        .ask = ask.data, .stem = stem.data, .answer = f->value};
    if (rc == OK)
        rc = talk_ask(d, &r->talk, &q);
    buf_fini(&ask);
    buf_fini(&stem);
    return rc;
}

static enum err tell_and_ask(struct document *d, struct recall *r,
                             const struct fact *fact, uint32_t n)
{
    enum err rc = OK;
    for (uint32_t i = 0; i < n && rc == OK; i++)
        rc = maker_pattern(&r->sentence[i], fact[i].pattern->fact, fact[i].key,
                           fact[i].value);
    if (rc == OK)
        rc = fit_text(d, r);
    for (uint32_t i = 0; i < n && rc == OK; i++)
        rc = ask_fact(d, r, &fact[i]);
    return rc;
}

/* One number at one of ten depths. */
enum err maker_passkey(struct document *d, struct maker *k)
{
    struct recall r = {.talk.k = k};
    struct fact f = {.pattern = &words_patterns[0]};
    f.key = words_nouns[rng_below(&k->rng, words_n_nouns)];
    maker_number(k, f.value, PASSKEY_DIGITS);
    add_sentence(&r, (double)rng_below(&k->rng, 10) / 10);
    enum err rc = tell_and_ask(d, &r, &f, 1);
    recall_fini(&r);
    return rc;
}

enum err maker_facts(struct document *d, struct maker *k)
{
    struct recall r = {.talk.k = k};
    struct fact fact[FACTS];
    size_t noun[FACTS], name[FACTS];
    maker_pick(k, noun, FACTS, words_n_nouns);
    maker_pick(k, name, FACTS, words_n_names);
    for (uint32_t i = 0; i < FACTS; i++) {
        struct fact *f = &fact[i];
        f->pattern = &words_patterns[rng_below(&k->rng, words_n_patterns)];
        f->key = words_nouns[noun[i]];
        if (f->pattern->value_is_number)
            maker_number(k, f->value, NUMBER_DIGITS);
        else
            memcpy(f->value, words_names[name[i]],
                   strlen(words_names[name[i]]) + 1);
        add_sentence(&r, depth_of(&r, i, FACTS));
    }
    enum err rc = tell_and_ask(d, &r, fact, FACTS);
    recall_fini(&r);
    return rc;
}

/* A name's number, and another name that has the same one: who has it? */
enum err maker_chains(struct document *d, struct maker *k)
{
    struct recall r = {.talk.k = k};
    char number[CHAINS][VALUE_MAX], answer[VALUE_MAX];
    size_t name[2 * CHAINS];
    enum err rc = OK;
    maker_pick(k, name, 2 * CHAINS, words_n_names);
    for (uint32_t i = 0; i < 2 * CHAINS && rc == OK; i++) {
        struct buf *s = add_sentence(&r, depth_of(&r, i, 2 * CHAINS));
        const char *first = words_names[name[i % CHAINS]];
        if (i < CHAINS)
            maker_number(k, number[i], NUMBER_DIGITS);
        rc = i < CHAINS ? maker_pattern(s, words_chain.first, first, number[i])
                        : maker_pattern(s, words_chain.next,
                                        words_names[name[i]], first);
    }
    if (rc == OK)
        rc = fit_text(d, &r);
    for (uint32_t i = 0; i < CHAINS && rc == OK; i++) {
        struct buf ask = {0}, stem = {0};
        rc = maker_pattern(&ask, words_chain.question, "", number[i]);
        if (rc == OK)
            rc = maker_pattern(&stem, words_chain.stem, "", number[i]);
        snprintf(answer, sizeof(answer), "%s and %s", words_names[name[i]],
                 words_names[name[i + CHAINS]]);
        struct talk_question q = {
            .ask = ask.data, .stem = stem.data, .answer = answer};
        if (rc == OK)
            rc = talk_ask(d, &r.talk, &q);
        buf_fini(&ask);
        buf_fini(&stem);
    }
    recall_fini(&r);
    return rc;
}

/* Asks where a person is; all other places are wrong. */
static enum err ask_place(struct document *d, struct recall *r,
                          const char *person, size_t place)
{
    struct buf ask = {0}, stem = {0};
    enum err rc = maker_pattern(&ask, words_move.question, person, "");
    if (rc == OK)
        rc = maker_pattern(&stem, words_move.stem, person, "");
    struct talk_question q = {.ask = ask.data, .stem = stem.data};
    q.answer = words_places[place];
    for (size_t i = 0; i < words_n_places; i++)
        if (i != place)
            q.wrong[q.n_wrong++] = words_places[i];
    if (rc == OK)
        rc = talk_ask(d, &r->talk, &q);
    buf_fini(&ask);
    buf_fini(&stem);
    return rc;
}

/* People go from place to place; every one of them goes somewhere. */
enum err maker_moves(struct document *d, struct maker *k)
{
    struct recall r = {.talk.k = k};
    size_t person[PEOPLE], place[PEOPLE] = {0};
    enum err rc = OK;
    maker_pick(k, person, PEOPLE, words_n_names);
    for (uint32_t i = 0; i < MOVES && rc == OK; i++) {
        size_t who = i < PEOPLE ? i : rng_below(&k->rng, PEOPLE);
        place[who] = rng_below(&k->rng, words_n_places);
        rc = maker_pattern(add_sentence(&r, depth_of(&r, i, MOVES)),
                           words_move.fact, words_names[person[who]],
                           words_places[place[who]]);
    }
    if (rc == OK)
        rc = fit_text(d, &r);
    for (uint32_t i = 0; i < PEOPLE && rc == OK; i++)
        rc = ask_place(d, &r, words_names[person[i]], place[i]);
    recall_fini(&r);
    return rc;
}

/* A list of numbers under pairs of nouns that fills the prompt. */
struct lookup {
    size_t *pair; /* [n_pairs] all pairs, in the order of the lines */
    size_t n_pairs;
    struct buf key; /* of the line that was made last */
    uint64_t seed;
};

static enum err lookup_init(struct lookup *l, struct maker *k)
{
    size_t n = words_n_nouns * (words_n_nouns - 1);
    *l = (struct lookup){.n_pairs = n, .seed = rng_next(&k->rng)};
    l->pair = malloc(n * sizeof(*l->pair));
    if (l->pair == NULL)
        return ERR_NOMEM;
    for (size_t i = 0; i < n; i++) {
        size_t j = rng_below(&k->rng, i + 1);
        l->pair[i] = l->pair[j];
        l->pair[j] = i;
    }
    return OK;
}

static void lookup_fini(struct lookup *l)
{
    free(l->pair);
    buf_fini(&l->key);
}

/* Line i: its key in l->key, its number in value. */
static enum err make_line(struct lookup *l, size_t i, char value[VALUE_MAX])
{
    size_t a = l->pair[i] / (words_n_nouns - 1);
    size_t b = l->pair[i] % (words_n_nouns - 1);
    struct maker k = {.o = NULL};
    rng_seed(&k.rng, l->seed + i);
    maker_number(&k, value, NUMBER_DIGITS);
    buf_clear(&l->key);
    return buf_printf(&l->key, "%s %s", words_nouns[a],
                      words_nouns[b + (b >= a)]);
}

static enum err fill_list(void *ctx, struct talk *t, size_t n_lines)
{
    struct lookup *l = ctx;
    char value[VALUE_MAX];
    struct buf *list = talk_turn(t, 0);
    enum err rc = buf_puts(list, "");
    for (size_t i = 0; i < n_lines && rc == OK; i++) {
        rc = make_line(l, i, value);
        if (rc == OK)
            rc = buf_printf(list, "%s: %s\n", l->key.data, value);
    }
    return rc == OK ? buf_puts(talk_turn(t, 1), read_reply) : rc;
}

static enum err ask_line(struct document *d, struct talk *t, struct lookup *l,
                         size_t i)
{
    struct buf ask = {0}, stem = {0};
    char value[VALUE_MAX];
    enum err rc = make_line(l, i, value);
    if (rc == OK)
        rc = buf_printf(&ask, "Which number belongs to %s?", l->key.data);
    if (rc == OK)
        rc = buf_printf(&stem, "%s:", l->key.data);
    struct talk_question q = {
        .ask = ask.data, .stem = stem.data, .answer = value};
    if (rc == OK)
        rc = talk_ask(d, t, &q);
    buf_fini(&ask);
    buf_fini(&stem);
    return rc;
}

enum err maker_lookup(struct document *d, struct maker *k)
{
    struct talk t = {.k = k};
    struct lookup l;
    size_t n_lines = 0, asked[LOOKUPS];
    enum err rc = lookup_init(&l, k);
    if (rc == OK)
        rc = talk_fit(d, &t, fill_list, &l, l.n_pairs);
    for (size_t i = 0; rc == OK && i < t.turn[0].len; i++)
        n_lines += t.turn[0].data[i] == '\n';
    if (rc == OK && n_lines < LOOKUPS)
        rc = err_set(k->m, ERR_INVAL, "a list of %zu lines is too short",
                     n_lines);
    if (rc == OK)
        maker_pick(k, asked, LOOKUPS, n_lines);
    for (uint32_t i = 0; i < LOOKUPS && rc == OK; i++)
        rc = ask_line(d, &t, &l, asked[i]);
    lookup_fini(&l);
    talk_fini(&t);
    return rc;
}
