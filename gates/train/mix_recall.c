/* Recall documents: facts told early, asked for at the end. */
#include <stdio.h>
#include <string.h>

#include "gates/train/mix_internal.h"
#include "gates/train/mix_words.h"

enum {
    FACTS_MIN = 2,
    FACTS_MAX = 8,
    DIGITS_MIN = 3,
    DIGITS_MAX = 5,
    TRIES = 12,
    NAME_BYTES = 32,
    PHRASE_BYTES = 128,
    CUE_WORDS = 3, /* of a phrase, by which it is asked for */
    /* A text and its reply, or every fact with a reply and others between;
     * then a question and an answer for each fact. */
    TURNS_MAX = 2 * FACTS_MAX + 64,
    BYTES_PER_TOKEN = 3 /* a first guess, with the template's tokens */
};

struct fact {
    const struct mix_pattern *pattern; /* NULL: the phrase says it */
    const char *relation;
    const char *cue; /* the question for the phrase */
    char key[NAME_BYTES], value[NAME_BYTES], phrase[PHRASE_BYTES];
};

struct recall {
    struct maker *k;
    struct fact fact[FACTS_MAX];
    size_t n;
    struct buf turn[TURNS_MAX];
    size_t n_turns;
};

/* Drawn letters read as a name that no list holds: what is learned is then
 * that names matter, not which. */
static void make_name(struct maker *k, char out[NAME_BYTES])
{
    static const char first[] = "BDFGKLMNPRSTVZ", inner[] = "bdfglmnprstvz",
                      vowel[] = "aeiou", last[] = "lnrs";
    size_t n = 0, syllables = 2 + mix_pick(k, 2);
    for (size_t i = 0; i < syllables; i++) {
        out[n++] = i == 0 ? first[mix_pick(k, sizeof(first) - 1)]
                          : inner[mix_pick(k, sizeof(inner) - 1)];
        out[n++] = vowel[mix_pick(k, sizeof(vowel) - 1)];
    }
    out[n++] = last[mix_pick(k, sizeof(last) - 1)];
    out[n] = '\0';
}

static void make_value(struct maker *k, struct fact *f, bool is_number)
{
    if (is_number) {
        size_t n = DIGITS_MIN + mix_pick(k, DIGITS_MAX - DIGITS_MIN + 1);
        for (size_t i = 0; i < n; i++)
            f->value[i] = (char)('1' + mix_pick(k, 9));
        f->value[n] = '\0';
    } else if (mix_pick(k, 3) == 0) {
        make_name(k, f->value);
    } else {
        snprintf(f->value, NAME_BYTES, "%s",
                 mix_values[mix_pick(k, mix_n_values)]);
    }
}

static void make_key(struct maker *k, struct fact *f, size_t nth)
{
    bool is_thing = f->pattern->key_is_thing;
    const char *const *keys = is_thing ? mix_things : mix_keys;
    size_t n = is_thing ? mix_n_things : mix_n_keys;
    if (!is_thing && mix_pick(k, 3) == 0)
        make_name(k, f->key);
    else /* each fact draws from seven keys of its own: they differ */
        snprintf(f->key, NAME_BYTES, "%s",
                 keys[(mix_pick(k, 7) + nth * 7) % n]);
}

static void make_fact(struct maker *k, struct fact *f, size_t nth)
{
    f->pattern = &mix_patterns[mix_pick(k, mix_n_patterns)];
    f->relation = f->pattern->value_is_number
                      ? mix_measures[mix_pick(k, mix_n_measures)]
                      : mix_roles[mix_pick(k, mix_n_roles)];
    make_key(k, f, nth);
    make_value(k, f, f->pattern->value_is_number);
}

/* A phrase in the place of a pattern, where there is one. */
static void make_cloze(struct maker *k, struct fact *f)
{
    static const char *const cue[] = {
        "How does the line end that begins with",
        "Please complete:", "One remark broke off. What followed after",
        "I forgot how this went on:"};
    if (!mix_phrase(k, f->phrase, sizeof(f->phrase)))
        return;
    f->pattern = NULL;
    f->cue = cue[mix_pick(k, sizeof(cue) / sizeof(cue[0]))];
    make_value(k, f, mix_pick(k, 2) == 0);
}

/* What %K, %R or %V stands for; NULL: the letter is none of these. */
static const char *word_of(const struct fact *f, char letter)
{
    return letter == 'K'   ? f->key
           : letter == 'R' ? f->relation
           : letter == 'V' ? f->value
                           : NULL;
}

static enum err put_pattern(struct buf *b, const char *pattern, size_t n,
                            const struct fact *f)
{
    enum err rc = OK;
    for (size_t i = 0; rc == OK && i < n; i++) {
        const char *word =
            pattern[i] == '%' ? word_of(f, pattern[i + 1]) : NULL;
        if (word != NULL) {
            rc = buf_puts(b, word);
            i++;
        } else {
            rc = buf_putc(b, pattern[i]);
        }
    }
    return rc;
}

static enum err put_fact(struct buf *b, const struct fact *f)
{
    if (f->pattern == NULL)
        return buf_printf(b, "%s %s.\n", f->phrase, f->value);
    enum err rc = put_pattern(b, f->pattern->fact, strlen(f->pattern->fact), f);
    return rc == OK ? buf_putc(b, '\n') : rc;
}

static size_t question_bytes(const struct fact *f)
{
    return strcspn(f->pattern->question, "?") + 1;
}

static enum err put_question(struct buf *b, const struct fact *f)
{
    if (f->pattern == NULL)
        return buf_printf(b, "%s \"%.*s\"?", f->cue,
                          (int)mix_first_words(f->phrase, CUE_WORDS),
                          f->phrase);
    return put_pattern(b, f->pattern->question, question_bytes(f), f);
}

static enum err put_answer(struct buf *b, const struct fact *f)
{
    if (f->pattern == NULL)
        return buf_printf(b, "%s %s.", f->phrase, f->value);
    const char *s = f->pattern->question + question_bytes(f) + 1;
    enum err rc = put_pattern(b, s, strlen(s), f);
    return rc == OK ? buf_printf(b, " %s.", f->value) : rc;
}

static void shuffle(struct recall *r)
{
    for (size_t i = 0; i < r->n; i++) {
        size_t j = i + mix_pick(r->k, r->n - i);
        struct fact swap = r->fact[i];
        r->fact[i] = r->fact[j];
        r->fact[j] = swap;
    }
}

/* Passages of about `bytes` bytes with the facts in the first half. */
static enum err put_told(struct recall *r, struct buf *b, size_t bytes)
{
    size_t early = bytes / 2 / r->n; /* for each fact */
    enum err rc = mix_add_passage(r->k, b, bytes / 16 + 1);
    for (size_t i = 0; rc == OK && i < r->n; i++) {
        rc = put_fact(b, &r->fact[i]);
        if (rc == OK)
            rc =
                mix_add_passage(r->k, b, early / 2 + mix_pick(r->k, early + 1));
    }
    while (rc == OK && b->len < bytes)
        rc = mix_add_passage(r->k, b, 400);
    return rc;
}

/* All as one text, in scratch. */
static enum err tell_plainly(struct recall *r, size_t bytes)
{
    struct mix *x = r->k->x;
    buf_clear(&x->doc);
    enum err rc = put_told(r, &x->doc, bytes);
    shuffle(r);
    for (size_t i = 0; rc == OK && i < r->n; i++) {
        rc = put_question(&x->doc, &r->fact[i]);
        if (rc == OK)
            rc = buf_putc(&x->doc, ' ');
        if (rc == OK)
            rc = put_answer(&x->doc, &r->fact[i]);
        if (rc == OK)
            rc = buf_putc(&x->doc, '\n');
    }
    x->scratch.n = 0;
    return rc == OK ? tokenizer_encode(x->o.tokenizer, x->doc.data, x->doc.len,
                                       0, &x->scratch)
                    : rc;
}

static struct buf *next_turn(struct recall *r)
{
    struct buf *b = &r->turn[r->n_turns++];
    buf_clear(b);
    return b;
}

static enum err put_reply(struct recall *r)
{
    static const char *const reply[] = {
        "Understood.",      "Very well.",          "I will keep it in mind.",
        "Go on, please.",   "Thank you, noted.",   "That is clear.",
        "Yes, I see that.", "All right. And then?"};
    return buf_puts(next_turn(r),
                    reply[mix_pick(r->k, sizeof(reply) / sizeof(reply[0]))]);
}

static enum err tell_in_a_text(struct recall *r, size_t bytes)
{
    enum err rc = put_told(r, next_turn(r), bytes);
    return rc == OK ? put_reply(r) : rc;
}

/* Every fact in a turn of its own, with talk between. */
static enum err tell_in_turns(struct recall *r, size_t bytes)
{
    size_t each = bytes / (r->n + 1), room = TURNS_MAX - 2 * r->n, done = 0;
    enum err rc = OK;
    for (size_t i = 0; rc == OK && i < r->n; i++) {
        struct buf *b = next_turn(r);
        if (mix_pick(r->k, 2) == 0)
            rc = mix_add_passage(r->k, b, each / 4 + 1);
        if (rc == OK)
            rc = put_fact(b, &r->fact[i]);
        done += b->len;
        if (rc == OK)
            rc = put_reply(r);
        if (rc != OK || r->n_turns + 2 > room || done >= bytes)
            continue;
        b = next_turn(r);
        rc = mix_add_passage(r->k, b, each / 2 + 1);
        done += b->len;
        if (rc == OK)
            rc = put_reply(r);
    }
    while (rc == OK && done < bytes && r->n_turns + 2 <= room) {
        struct buf *b = next_turn(r);
        rc = mix_add_passage(r->k, b, 100 + mix_pick(r->k, 500));
        done += b->len + 1;
        if (rc == OK)
            rc = put_reply(r);
    }
    return rc;
}

/* All as a conversation, in scratch. */
static enum err converse(struct recall *r, bool in_turns, size_t bytes)
{
    struct mix_turn turn[TURNS_MAX];
    r->n_turns = 0;
    enum err rc = in_turns ? tell_in_turns(r, bytes) : tell_in_a_text(r, bytes);
    shuffle(r);
    for (size_t i = 0; rc == OK && i < r->n; i++) {
        rc = put_question(next_turn(r), &r->fact[i]);
        if (rc == OK)
            rc = put_answer(next_turn(r), &r->fact[i]);
    }
    for (size_t i = 0; i < r->n_turns; i++)
        turn[i] =
            (struct mix_turn){i % 2 == 0, r->turn[i].data, r->turn[i].len};
    return rc == OK ? mix_put_turns(r->k, turn, r->n_turns) : rc;
}

/* The last tokens of the document, so that the questions are in it; plain
 * text before them where it is too short. */
static void fill_from_the_end(struct maker *k, int32_t *out)
{
    const struct tokens *doc = &k->x->scratch;
    size_t n = doc->n < k->n_tokens ? doc->n : k->n_tokens;
    uint32_t missing = k->n_tokens - (uint32_t)n;
    mix_copy_text(k, out, missing);
    memcpy(out + missing, doc->id + (doc->n - n), n * sizeof(*out));
}

/* Where the last " value" before byte `end` begins; false: nowhere. */
static bool find_last(const struct buf *text, const char *value, size_t end,
                      size_t *at)
{
    size_t n = strlen(value);
    for (size_t i = end; i-- > 0;)
        if (text->data[i] == ' ' && i + 1 + n <= end &&
            memcmp(text->data + i + 1, value, n) == 0) {
            *at = i + 1;
            return true;
        }
    return false;
}

/* Marks the tokens that the bytes [from, from + n) of the text are in. */
static void mark(struct maker *k, const int32_t *id, size_t from, size_t n)
{
    size_t at = 0;
    for (uint32_t i = 0; i < k->n_tokens && at < from + n; i++) {
        size_t len = 0;
        tokenizer_token_bytes(k->x->o.tokenizer, id[i], &len);
        if (at + len > from)
            k->answer[i] = 1;
        at += len;
    }
}

/* Questions stand in the order of the facts: answers are found from the last
 * to the first. One that was cut off is not there. */
static enum err mark_answers(struct recall *r, const int32_t *id)
{
    struct buf *text = &r->k->x->doc;
    enum err rc = OK;
    buf_clear(text);
    for (uint32_t i = 0; rc == OK && i < r->k->n_tokens; i++) {
        size_t n = 0;
        const char *s = tokenizer_token_bytes(r->k->x->o.tokenizer, id[i], &n);
        rc = buf_append(text, s, n);
    }
    size_t end = text->len;
    for (size_t i = r->n; rc == OK && i-- > 0;) {
        size_t at;
        if (!find_last(text, r->fact[i].value, end, &at))
            break;
        mark(r->k, id, at, strlen(r->fact[i].value));
        end = at;
    }
    return rc;
}

enum form { PLAIN, TEXT_TURN, MANY_TURNS, FORMS };

/* Texts differ in how many bytes a token has: a document that is too long,
 * and would lose its first facts, is made again with less text. */
static enum err make(struct recall *r, enum form form, int32_t *out)
{
    struct maker *k = r->k;
    size_t bytes = (size_t)k->n_tokens * BYTES_PER_TOKEN;
    enum err rc = OK;
    for (int i = 0; i < TRIES && rc == OK; i++) {
        rc = form == PLAIN ? tell_plainly(r, bytes)
                           : converse(r, form == MANY_TURNS, bytes);
        if (k->x->scratch.n <= k->n_tokens)
            break;
        bytes = bytes * k->n_tokens / k->x->scratch.n;
        bytes -= bytes / 16;
    }
    if (rc != OK)
        return rc;
    if (form == PLAIN)
        fill_from_the_end(k, out);
    else
        mix_fill(k, out);
    return mark_answers(r, out);
}

static enum err make_document(struct maker *k, bool is_cloze, int32_t *out)
{
    struct recall r = {.k = k};
    enum form form =
        k->x->o.chat == NULL ? PLAIN : (enum form)mix_pick(k, FORMS);
    /* What fits with questions and text: turns have tokens of their own. */
    size_t most = k->n_tokens / (form == PLAIN ? 48 : 96);
    most = most < FACTS_MIN ? FACTS_MIN : most > FACTS_MAX ? FACTS_MAX : most;
    r.n = FACTS_MIN + mix_pick(k, most - FACTS_MIN + 1);
    for (size_t i = 0; i < r.n; i++)
        make_fact(k, &r.fact[i], i);
    for (size_t i = 0; is_cloze && i < r.n; i++)
        make_cloze(k, &r.fact[i]);
    enum err rc = make(&r, form, out);
    for (size_t i = 0; i < TURNS_MAX; i++)
        buf_fini(&r.turn[i]);
    return rc;
}

enum err mix_recall(struct maker *k, int32_t *out)
{
    return make_document(k, false, out);
}

enum err mix_cloze(struct maker *k, int32_t *out)
{
    return make_document(k, true, out);
}
