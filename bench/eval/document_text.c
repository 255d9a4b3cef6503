#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "bench/eval/document_internal.h"
#include "bench/eval/words.h"

enum {
    SPANS = 4,
    SPAN = 32,    /* tokens of a passage that comes again */
    SPAN_CUE = 8, /* those of them that are given */
    SPAN_STEP = DOCUMENT_TAIL / SPANS
};

/* The first token after the prompt is given: the logits that predict it came
 * from the prefill, before anything was forgotten. */
enum err maker_next_text(struct document *d, struct maker *k)
{
    enum err rc = maker_start_text(d, k);
    size_t n = k->o->n_tokens - d->prompt.n;
    if (rc == OK)
        rc = maker_append(&d->prompt, k->window, n);
    if (rc == OK)
        rc = maker_append(&d->probe[0].ids, k->window + n, DOCUMENT_NEXT + 1);
    d->probe[0].first = 1;
    d->n_probes = d->n_questions = 1;
    return rc;
}

/* Passages from further on in the book stand in the text, one in each quarter
 * of it; the probe begins one of them again. */
enum err maker_copies(struct document *d, struct maker *k)
{
    enum err rc = maker_start_text(d, k);
    uint32_t n = k->o->n_tokens - (uint32_t)d->prompt.n - SPANS * SPAN;
    const int32_t *text = k->window, *spans = text + k->o->n_tokens;
    uint32_t quarter = n / SPANS;
    for (uint32_t i = 0; i < SPANS && rc == OK; i++) {
        const int32_t *span = spans + (size_t)i * SPAN_STEP;
        uint32_t all = i + 1 < SPANS ? quarter : n - i * quarter;
        uint32_t before = (uint32_t)rng_below(&k->rng, quarter);
        rc = maker_append(&d->prompt, text, before);
        if (rc == OK)
            rc = maker_append(&d->prompt, span, SPAN);
        if (rc == OK)
            rc = maker_append(&d->prompt, text + before, all - before);
        if (rc == OK)
            rc = maker_append(&d->probe[i].ids, span, SPAN);
        d->probe[i].first = SPAN_CUE;
        text += all;
    }
    d->n_probes = d->n_questions = SPANS;
    return rc;
}

/* Names of people in a passage, by where they stand: a capital in the middle
 * of a sentence. */
enum { NAMES_MAX = 32, NAME_BYTES = 32, NAME_LEAST = 4 };

struct names {
    char name[NAMES_MAX][NAME_BYTES];
    size_t replaced_by[NAMES_MAX]; /* of words_names */
    uint32_t n;
};

/* Bytes of the word at s. */
static size_t word_len(const char *s)
{
    size_t n = 0;
    while (isalpha((unsigned char)s[n]))
        n++;
    return n;
}

static const char *replacement(const struct names *x, const char *word,
                               size_t n)
{
    for (uint32_t i = 0; i < x->n; i++)
        if (strlen(x->name[i]) == n && memcmp(x->name[i], word, n) == 0)
            return words_names[x->replaced_by[i]];
    return NULL;
}

/* Titles keep their place before the other name. */
static bool is_title(const char *word, size_t n)
{
    static const char *const titles[] = {
        "Miss", "Lady", "Lord", "Colonel", "Captain", "Admiral", "Doctor"};
    for (size_t i = 0; i < sizeof(titles) / sizeof(titles[0]); i++)
        if (strlen(titles[i]) == n && memcmp(titles[i], word, n) == 0)
            return true;
    return false;
}

static void collect_names(struct names *x, struct maker *k, const char *s,
                          size_t n)
{
    maker_pick(k, x->replaced_by, NAMES_MAX, words_n_names);
    for (size_t i = 2; i < n && x->n < NAMES_MAX; i++) {
        size_t len = word_len(s + i);
        bool is_inside = s[i - 1] == ' ' &&
                         (islower((unsigned char)s[i - 2]) || s[i - 2] == ',');
        if (!is_inside || !isupper((unsigned char)s[i]) || len < NAME_LEAST ||
            len >= NAME_BYTES || is_title(s + i, len) ||
            replacement(x, s + i, len) != NULL)
            continue;
        memcpy(x->name[x->n], s + i, len);
        x->name[x->n++][len] = '\0';
    }
}

/* Words outside the names stay, also between letters of other scripts. */
static enum err put_renamed(struct buf *out, const struct names *x,
                            const char *s, size_t n)
{
    enum err rc = OK;
    for (size_t i = 0; i < n && rc == OK;) {
        size_t len = word_len(s + i);
        const char *other = replacement(x, s + i, len);
        if (other != NULL)
            rc = buf_puts(out, other);
        else
            rc = buf_append(out, s + i, len > 0 ? len : 1);
        i += len > 0 ? len : 1;
    }
    return rc;
}

/* A passage of the prompt's first half comes again, told of other people. */
enum err maker_retelling(struct document *d, struct maker *k)
{
    enum err rc = maker_start_text(d, k);
    struct names names = {.n = 0};
    struct buf text = {0}, told = {0};
    uint32_t n = k->o->n_tokens - (uint32_t)d->prompt.n;
    uint32_t length = n / 3 < DOCUMENT_NEXT ? n / 3 : DOCUMENT_NEXT;
    size_t from = rng_below(&k->rng, n / 2 - length + 1);
    if (rc == OK)
        rc = maker_append(&d->prompt, k->window, n);
    if (rc == OK)
        rc = maker_text(k, k->window + from, length, &text);
    if (rc == OK) {
        collect_names(&names, k, text.data, text.len);
        rc = put_renamed(&told, &names, text.data, text.len);
    }
    struct tokens *ids = &d->probe[0].ids;
    if (rc == OK)
        rc = maker_encode(k, told.data, told.len, ids);
    if (ids->n > DOCUMENT_NEXT + 1)
        ids->n = DOCUMENT_NEXT + 1;
    d->probe[0].first = 1;
    d->n_probes = d->n_questions = 1;
    buf_fini(&text);
    buf_fini(&told);
    return rc;
}

/* Lines "word: label" under a rule that the labels do not name, with text of
 * the book between them. */
enum {
    EXAMPLES = 48,
    ASKED = 16,
    PADDED_EVERY = 8,
    WORDS_MAX = EXAMPLES + ASKED
};

struct examples {
    const char *word[WORDS_MAX];
    bool is_second[WORDS_MAX]; /* of the two labels */
    const char *const *label;
    struct buf filler, text;
};

static bool starts_with_vowel(const char *word)
{
    return strchr("aeiou", word[0]) != NULL;
}

/* The label says whether a word begins with a vowel, as half of them do. */
static enum err choose_examples(struct examples *x, struct maker *k)
{
    size_t order[WORDS_MAX], n = 0, n_kind[2] = {0, 0};
    size_t *all = malloc(words_n_nouns * sizeof(*all));
    bool is_swapped = rng_below(&k->rng, 2) == 1;
    if (all == NULL)
        return ERR_NOMEM;
    x->label = words_labels[rng_below(&k->rng, words_n_labels)];
    maker_pick(k, all, words_n_nouns, words_n_nouns);
    maker_pick(k, order, WORDS_MAX, WORDS_MAX);
    for (size_t i = 0; i < words_n_nouns && n < WORDS_MAX; i++) {
        bool is_vowel = starts_with_vowel(words_nouns[all[i]]);
        if (n_kind[is_vowel]++ >= WORDS_MAX / 2)
            continue;
        x->word[order[n]] = words_nouns[all[i]];
        x->is_second[order[n++]] = is_vowel != is_swapped;
    }
    free(all);
    return n == WORDS_MAX ? OK : ERR_INTERNAL;
}

/* Up to n bytes of the filler from *at on, to a whole word. */
static enum err put_padding(struct examples *x, size_t *at, size_t n)
{
    const char *s = x->filler.data;
    size_t from = *at, to = from + n;
    while (to > from && s[to] != ' ' && s[to] != '\n')
        to--;
    *at = to;
    enum err rc = buf_append(&x->text, s + from, to - from);
    return rc == OK ? buf_puts(&x->text, "\n\n") : rc;
}

static enum err put_examples(struct examples *x, size_t n_bytes)
{
    enum err rc = OK;
    size_t at = 0, each = n_bytes / (EXAMPLES / PADDED_EVERY);
    buf_clear(&x->text);
    for (size_t i = 0; i < EXAMPLES && rc == OK; i++) {
        if (i % PADDED_EVERY == 0 && each > 0)
            rc = put_padding(x, &at, each);
        if (rc == OK)
            rc = buf_printf(&x->text, "%s: %s\n", x->word[i],
                            x->label[x->is_second[i]]);
    }
    return rc;
}

static enum err read_examples(struct document *d, struct maker *k,
                              const struct examples *x)
{
    d->prompt.n = 0;
    enum err rc = maker_start_text(d, k);
    return rc == OK ? maker_encode(k, x->text.data, x->text.len, &d->prompt)
                    : rc;
}

static enum err fit_examples(struct document *d, struct maker *k,
                             struct examples *x)
{
    size_t low = 0, high = x->filler.len + 1;
    enum err rc = OK;
    while (high - low > 1 && rc == OK) {
        size_t n = low + (high - low) / 2;
        rc = put_examples(x, n);
        if (rc == OK)
            rc = read_examples(d, k, x);
        if (d->prompt.n <= k->o->n_tokens)
            low = n;
        else
            high = n;
    }
    if (rc == OK)
        rc = put_examples(x, low);
    if (rc == OK)
        rc = read_examples(d, k, x);
    if (rc == OK && d->prompt.n > k->o->n_tokens)
        rc = err_set(k->m, ERR_INVAL,
                     "%d examples have %zu tokens, the prompt may have %u",
                     EXAMPLES, d->prompt.n, k->o->n_tokens);
    return rc;
}

/* The right label and then the other. */
static enum err ask_example(struct document *d, struct maker *k,
                            const struct examples *x, size_t i)
{
    struct tokens given = {0};
    struct buf line = {0};
    enum err rc = buf_printf(&line, "%s:", x->word[i]);
    if (rc == OK)
        rc = maker_encode(k, line.data, line.len, &given);
    for (int wrong = 0; wrong < 2 && rc == OK; wrong++) {
        struct document_probe *p = &d->probe[d->n_probes++];
        buf_clear(&line);
        rc = buf_printf(&line, "%s: %s", x->word[i],
                        x->label[x->is_second[i] != (wrong == 1)]);
        if (rc == OK)
            rc = maker_encode(k, line.data, line.len, &p->ids);
        p->first = (uint32_t)maker_common(&given, &p->ids);
        p->is_wrong = wrong == 1;
    }
    d->n_questions++;
    tokens_fini(&given);
    buf_fini(&line);
    return rc;
}

enum err maker_examples(struct document *d, struct maker *k)
{
    struct examples x = {.label = NULL};
    enum err rc = choose_examples(&x, k);
    if (rc == OK)
        rc = maker_filler(k, &x.filler);
    if (rc == OK)
        rc = fit_examples(d, k, &x);
    for (size_t i = EXAMPLES; i < WORDS_MAX && rc == OK; i++)
        rc = ask_example(d, k, &x, i);
    buf_fini(&x.filler);
    buf_fini(&x.text);
    return rc;
}
