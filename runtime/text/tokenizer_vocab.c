#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "runtime/text/tokenizer_internal.h"

/* The byte-level alphabet of GPT-2 writes every byte as one printable
 * character: the 188 bytes that Latin-1 can print as themselves, the other 68
 * as U+0100 and up, in order. Returns the byte, or -1. */
static int alphabet_byte(uint32_t cp)
{
    enum { FIRST = 256, LOW = 33, MIDDLE = LOW + 34, ALL = MIDDLE + 1 };
    if ((cp >= 0x21 && cp <= 0x7E) || (cp >= 0xA1 && cp <= 0xFF && cp != 0xAD))
        return (int)cp;
    if (cp < FIRST || cp >= FIRST + ALL)
        return -1;
    uint32_t k = cp - FIRST;
    if (k < LOW)
        return (int)k; /* 00 to 20 */
    if (k < MIDDLE)
        return (int)(0x7F + k - LOW); /* 7F to A0 */
    return 0xAD;
}

/* Bytes that s[0..n) stands for into out (n bytes are enough), their number
 * in *len; false when it is not all in the alphabet. */
static bool decode_alphabet(const char *s, size_t n, char *out, size_t *len)
{
    size_t k = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        int step = utf8_decode(s + i, n - i, &cp);
        int byte = step > 0 ? alphabet_byte(cp) : -1;
        if (byte < 0)
            return false;
        out[k++] = (char)byte;
        i += (size_t)step;
    }
    *len = k;
    return true;
}

static uint64_t mix(uint64_t h)
{
    h ^= h >> 32;
    h *= 0x9E3779B97F4A7C15u;
    h ^= h >> 29;
    h *= 0xBF58476D1CE4E5B9u;
    return h ^ h >> 32;
}

static size_t hash_bytes(const char *s, size_t n)
{
    uint64_t h = n;
    for (; n >= 8; s += 8, n -= 8) {
        uint64_t word;
        memcpy(&word, s, 8);
        h = mix(h ^ word);
    }
    uint64_t rest = 0;
    memcpy(&rest, s, n);
    return (size_t)mix(h ^ rest);
}

static size_t hash_pair(int32_t left, int32_t right)
{
    return (size_t)mix((uint64_t)(uint32_t)left << 32 | (uint32_t)right);
}

/* A table for n entries, all free. */
static int32_t *table_new(size_t n, size_t *mask)
{
    size_t room = 16;
    while (room < 2 * n)
        room *= 2;
    int32_t *table = malloc(room * sizeof(*table));
    if (table == NULL)
        return NULL;
    for (size_t i = 0; i < room; i++)
        table[i] = -1;
    *mask = room - 1;
    return table;
}

static const char *bytes_of(const struct tokenizer *t, int32_t id)
{
    return t->blob + t->token[id].at;
}

static bool token_equals(const struct tokenizer *t, int32_t id, const char *s,
                         size_t n)
{
    return t->token[id].n == n && memcmp(bytes_of(t, id), s, n) == 0;
}

/* Where s[0..n) is in the table, or the free place where it belongs. */
static int32_t *text_slot(const struct tokenizer *t, const char *s, size_t n)
{
    size_t i = hash_bytes(s, n) & t->text_mask;
    while (t->by_text[i] >= 0 && !token_equals(t, t->by_text[i], s, n))
        i = (i + 1) & t->text_mask;
    return &t->by_text[i];
}

static int32_t *pair_slot(const struct tokenizer *t, int32_t left,
                          int32_t right)
{
    size_t i = hash_pair(left, right) & t->pair_mask;
    while (t->by_pair[i] >= 0 && (t->merge[t->by_pair[i]].left != left ||
                                  t->merge[t->by_pair[i]].right != right))
        i = (i + 1) & t->pair_mask;
    return &t->by_pair[i];
}

int32_t tokenizer_lookup(const struct tokenizer *t, const char *s, size_t n)
{
    return *text_slot(t, s, n);
}

int32_t tokenizer_rank(const struct tokenizer *t, int32_t left, int32_t right)
{
    return *pair_slot(t, left, right);
}

static enum err check_sizes(const struct tokenizer_spec *spec, size_t *total,
                            struct errmsg *m)
{
    if (spec->n_tokens == 0 || spec->n_tokens > TOKENIZER_VOCAB_MAX)
        return err_set(m, ERR_INVAL,
                       "the tokenizer has %zu tokens: 1 to %d are possible",
                       spec->n_tokens, TOKENIZER_VOCAB_MAX);
    if (spec->n_merges > TOKENIZER_VOCAB_MAX)
        return err_set(m, ERR_INVAL,
                       "the tokenizer has %zu merges: up to %d are possible",
                       spec->n_merges, TOKENIZER_VOCAB_MAX);
    *total = 0;
    for (size_t i = 0; i < spec->n_tokens; i++) {
        size_t n = spec->token[i].n;
        if (n == 0)
            return err_set(m, ERR_INVAL, "token %zu is empty", i);
        if (n > TOKENIZER_TOKEN_MAX)
            return err_set(m, ERR_INVAL,
                           "token %zu has %zu bytes: more than %d", i, n,
                           TOKENIZER_TOKEN_MAX);
        *total += n;
        if (*total > TOKENIZER_BLOB_MAX)
            return err_set(m, ERR_INVAL,
                           "the tokens have more than %d bytes together",
                           TOKENIZER_BLOB_MAX);
    }
    return OK;
}

static bool is_special_type(int type)
{
    return type == TOKEN_CONTROL || type == TOKEN_UNKNOWN ||
           type == TOKEN_USER_DEFINED;
}

/* Bytes and kind of every token, and the table of the normal ones. */
static enum err build_tokens(struct tokenizer *t,
                             const struct tokenizer_spec *spec,
                             struct errmsg *m)
{
    uint32_t at = 0;
    t->n_tokens = spec->n_tokens;
    for (size_t i = 0; i < spec->n_tokens; i++) {
        struct gguf_str s = spec->token[i];
        int32_t type = spec->type == NULL ? TOKEN_NORMAL : spec->type[i];
        if (type < TOKEN_NORMAL || type > TOKEN_BYTE)
            return err_set(m, ERR_INVAL,
                           "token %zu has the type %d: 1 to 6 exist", i, type);
        struct token *k = &t->token[i];
        *k =
            (struct token){.at = at, .n = (uint32_t)s.n, .type = (uint8_t)type};
        size_t n = s.n;
        if (type == TOKEN_NORMAL || type == TOKEN_BYTE)
            k->lookup = decode_alphabet(s.s, s.n, t->blob + at, &n);
        if (!k->lookup)
            memcpy(t->blob + at, s.s, s.n);
        else
            k->n = (uint32_t)n;
        at += k->n;
        t->n_special += is_special_type(type);
        if (!k->lookup)
            continue;
        int32_t *slot = text_slot(t, t->blob + k->at, k->n);
        if (*slot >= 0)
            return err_set(m, ERR_INVAL, "tokens %d and %zu are both \"%.*s\"",
                           *slot, i, (int)(s.n < 64 ? s.n : 64), s.s);
        *slot = (int32_t)i;
    }
    return OK;
}

static void build_byte_ids(struct tokenizer *t)
{
    t->has_all_bytes = true;
    for (int b = 0; b < 256; b++) {
        char c = (char)b;
        /* The others are never part of valid UTF-8. */
        bool is_used = b < 0xC0 || (b >= 0xC2 && b < 0xF5);
        t->byte_id[b] = tokenizer_lookup(t, &c, 1);
        if (is_used && t->byte_id[b] < 0)
            t->has_all_bytes = false;
    }
    for (size_t i = 0; i < t->n_tokens; i++) {
        const struct token *k = &t->token[i];
        if (k->n > t->longest)
            t->longest = k->n;
        unsigned char first = k->n > 0 ? (unsigned char)t->blob[k->at] : 0;
        if (k->lookup && k->n > t->longest_from[first])
            t->longest_from[first] = k->n;
    }
}

static int by_bytes(const void *a, const void *b, void *tokenizer)
{
    const struct tokenizer *t = tokenizer;
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    size_t nx = t->token[x].n, ny = t->token[y].n;
    int c = memcmp(bytes_of(t, x), bytes_of(t, y), nx < ny ? nx : ny);
    if (c != 0)
        return c;
    return nx < ny ? -1 : nx > ny;
}

static enum err build_specials(struct tokenizer *t, struct errmsg *m)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n_tokens; i++) {
        if (!is_special_type(t->token[i].type))
            continue;
        t->special[n++] = (int32_t)i;
        t->special_first[(unsigned char)t->blob[t->token[i].at]] = true;
    }
    qsort_r(t->special, n, sizeof(*t->special), by_bytes, t);
    for (size_t i = 1; i < n; i++)
        if (by_bytes(&t->special[i - 1], &t->special[i], t) == 0)
            return err_set(m, ERR_INVAL, "tokens %d and %d are both \"%.*s\"",
                           t->special[i - 1], t->special[i],
                           (int)t->token[t->special[i]].n,
                           bytes_of(t, t->special[i]));
    return OK;
}

/* The special token whose text is exactly this; -1: none. */
static int32_t special_named(const struct tokenizer *t, const char *s, size_t n)
{
    size_t len = 0;
    int32_t id = tokenizer_match_special(t, s, n, &len);
    return id >= 0 && len == n ? id : -1;
}

/* Room for both sides of a merge and what they make. */
struct merge_text {
    char raw[2 * TOKENIZER_TOKEN_MAX];  /* as in the file, without the space */
    char text[2 * TOKENIZER_TOKEN_MAX]; /* the bytes it stands for */
};

/* The token that raw[0..n) is; -1: a special one, which merges do not make;
 * -2: none. */
static int32_t merge_part(const struct tokenizer *t, const char *raw, size_t n,
                          char *text)
{
    size_t len = 0;
    if (decode_alphabet(raw, n, text, &len)) {
        int32_t id = tokenizer_lookup(t, text, len);
        if (id >= 0)
            return id;
    }
    return special_named(t, raw, n) >= 0 ? -1 : -2;
}

static enum err merge_fault(struct errmsg *m, size_t rank, struct gguf_str line,
                            const char *what)
{
    return err_set(m, ERR_INVAL, "merge %zu, \"%.*s\", %s", rank,
                   (int)(line.n < 64 ? line.n : 64), line.n > 0 ? line.s : "",
                   what);
}

/* Reads "left right". *g is left alone when a special token is part of it:
 * such a merge never applies. */
static enum err parse_merge(const struct tokenizer *t, size_t rank,
                            struct gguf_str line, struct merge_text *w,
                            struct merge *g, struct errmsg *m)
{
    if (line.n > 2 * TOKENIZER_TOKEN_MAX)
        return err_set(m, ERR_INVAL, "merge %zu has %zu bytes: more than %d",
                       rank, line.n, 2 * TOKENIZER_TOKEN_MAX);
    const char *space = line.n > 0 ? memchr(line.s, ' ', line.n) : NULL;
    size_t n_left = space != NULL ? (size_t)(space - line.s) : 0;
    size_t n_right = space != NULL ? line.n - n_left - 1 : 0;
    if (n_left == 0 || n_right == 0 || memchr(space + 1, ' ', n_right) != NULL)
        return merge_fault(m, rank, line, "is not two tokens and a space");
    memcpy(w->raw, line.s, n_left);
    memcpy(w->raw + n_left, space + 1, n_right);
    int32_t left = merge_part(t, w->raw, n_left, w->text);
    int32_t right = merge_part(t, w->raw + n_left, n_right, w->text);
    if (left == -2 || right == -2)
        return merge_fault(m, rank, line, "names an unknown token");
    int32_t result = merge_part(t, w->raw, n_left + n_right, w->text);
    if (result == -2)
        return merge_fault(m, rank, line, "makes an unknown token");
    if (left >= 0 && right >= 0 && result >= 0)
        *g = (struct merge){left, right, result};
    return OK;
}

/* Of a pair that stands twice the later rank counts, as in the reference. */
static enum err build_merges(struct tokenizer *t,
                             const struct tokenizer_spec *spec,
                             struct merge_text *w, struct errmsg *m)
{
    t->n_merges = spec->n_merges;
    for (size_t i = 0; i < spec->n_merges; i++) {
        struct merge *g = &t->merge[i];
        *g = (struct merge){-1, -1, -1};
        enum err rc = parse_merge(t, i, spec->merge[i], w, g, m);
        if (rc != OK)
            return rc;
        if (g->result >= 0)
            *pair_slot(t, g->left, g->right) = (int32_t)i;
    }
    return OK;
}

/* Names by which model families end a turn or a text. */
static bool is_end_name(const char *s, size_t n)
{
    static const char *const names[] = {
        "<|im_end|>", "<|endoftext|>", "<|eot_id|>",
        "<|eom_id|>", "<|end|>",       "<|end_of_text|>",
        "<|return|>", "<end_of_turn>", "</s>",
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strlen(names[i]) == n && memcmp(names[i], s, n) == 0)
            return true;
    return false;
}

static enum err build_ends(struct tokenizer *t,
                           const struct tokenizer_spec *spec, struct errmsg *m)
{
    const struct {
        const char *name;
        int32_t id;
    } named[] = {{"bos", spec->bos},
                 {"eos", spec->eos},
                 {"eot", spec->eot},
                 {"eom", spec->eom}};
    for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++)
        if (named[i].id < -1 || named[i].id >= (int64_t)t->n_tokens)
            return err_set(
                m, ERR_INVAL,
                "tokenizer.ggml.%s_token_id is %d: the tokenizer has "
                "%zu tokens",
                named[i].name, named[i].id, t->n_tokens);
    t->bos = spec->bos;
    t->eos = spec->eos;
    t->add_bos = spec->add_bos && spec->bos >= 0;
    for (int32_t id = 0; id < (int32_t)t->n_tokens; id++) {
        bool ends = id == spec->eos || id == spec->eot || id == spec->eom;
        if (!ends && t->token[id].type == TOKEN_CONTROL)
            ends = is_end_name(bytes_of(t, id), t->token[id].n);
        if (ends)
            t->eog[t->n_eog++] = id;
    }
    return OK;
}

int32_t tokenizer_match_special(const struct tokenizer *t, const char *s,
                                size_t n, size_t *len)
{
    if (n == 0 || !t->special_first[(unsigned char)s[0]])
        return -1;
    int32_t best = -1;
    size_t lo = 0, hi = t->n_special;
    /* special[lo..hi) begin with s[0..d); those that end there come first. */
    for (size_t d = 0; lo < hi && d < n; d++) {
        unsigned char c = (unsigned char)s[d];
        size_t a = lo, b = hi;
        while (a < b) {
            size_t mid = (a + b) / 2;
            if ((unsigned char)bytes_of(t, t->special[mid])[d] < c)
                a = mid + 1;
            else
                b = mid;
        }
        lo = a;
        b = hi;
        while (a < b) {
            size_t mid = (a + b) / 2;
            if ((unsigned char)bytes_of(t, t->special[mid])[d] <= c)
                a = mid + 1;
            else
                b = mid;
        }
        hi = a;
        if (lo < hi && t->token[t->special[lo]].n == d + 1) {
            best = t->special[lo++];
            *len = d + 1;
        }
    }
    return best;
}

enum err tokenizer_build(struct tokenizer *t, const struct tokenizer_spec *spec,
                         struct errmsg *m)
{
    size_t total = 0;
    enum err rc = check_sizes(spec, &total, m);
    if (rc != OK)
        return rc;
    size_t n = spec->n_tokens;
    struct merge_text *w = malloc(sizeof(*w));
    t->blob = malloc(total);
    t->token = calloc(n, sizeof(*t->token));
    t->by_text = table_new(n, &t->text_mask);
    t->merge = calloc(spec->n_merges + 1, sizeof(*t->merge));
    t->by_pair = table_new(spec->n_merges, &t->pair_mask);
    t->special = calloc(n, sizeof(*t->special));
    t->eog = calloc(n, sizeof(*t->eog));
    if (w == NULL || t->blob == NULL || t->token == NULL ||
        t->by_text == NULL || t->merge == NULL || t->by_pair == NULL ||
        t->special == NULL || t->eog == NULL) {
        rc =
            err_set(m, ERR_NOMEM, "no memory for a tokenizer of %zu tokens", n);
        goto out;
    }
    rc = build_tokens(t, spec, m);
    if (rc == OK)
        rc = build_specials(t, m);
    if (rc != OK)
        goto out;
    build_byte_ids(t);
    rc = build_merges(t, spec, w, m);
    if (rc == OK)
        rc = build_ends(t, spec, m);
out:
    free(w);
    return rc;
}
