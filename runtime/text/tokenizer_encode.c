#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/grow.h"
#include "base/utf8.h"
#include "runtime/text/nfc.h"
#include "runtime/text/tokenizer_internal.h"

/* Bytes [begin, end) of a text. */
struct span {
    size_t begin, end;
};

/* Ascending and disjoint. */
struct spans {
    struct span *v;
    size_t n, cap;
};

/* One call of tokenizer_encode: its text and its working memory. */
struct encoder {
    const struct tokenizer *t;
    struct pretok_scan scan;
    struct bpe_scratch bpe;
    struct buf normal; /* NFC of one stretch */
    struct tokens *out;
    /* Marked bytes of the whole text, and how many of them lie before the
     * stretch that is being encoded. */
    const struct spans *marked;
    size_t n_marks_passed;
    /* Those of the stretch, as offsets in what is split into words. */
    struct spans local;
    size_t n_local_passed;
    struct buf piece; /* NFC between two of them */
};

static enum err spans_push(struct spans *v, size_t begin, size_t end)
{
    void *p = grow_array(v->v, &v->cap, v->n + 1, sizeof(*v->v));
    if (p == NULL)
        return ERR_NOMEM;
    v->v = p;
    v->v[v->n++] = (struct span){begin, end};
    return OK;
}

/* Where NFC of what is before and of what is behind is NFC of the whole:
 * before a character below U+0300 (nfc.h). */
static bool is_nfc_border(const char *s, size_t n, size_t at)
{
    unsigned char c = at < n ? (unsigned char)s[at] : 0;
    return at == 0 || at == n || c < 0x80 || (c >= 0xC0 && c < 0xCC);
}

/* Adds the length of the NFC form of s[from..to) to *total. */
static enum err add_nfc_length(struct encoder *e, const char *s, size_t from,
                               size_t to, size_t *total)
{
    buf_clear(&e->piece);
    enum err rc = nfc_append(&e->piece, s + from, to - from);
    *total += e->piece.len;
    return rc;
}

/* How far a stretch was looked at, and the length of its NFC form up to
 * there. */
struct progress {
    size_t at, normal;
};

/* One marked span of the stretch s[0..n), moved to where it lies in the NFC
 * form. */
static enum err place_normal(struct encoder *e, const char *s, size_t n,
                             struct span in, struct progress *done)
{
    size_t at = done->at, normal = done->normal;
    while (in.begin > at && !is_nfc_border(s, n, in.begin))
        in.begin--;
    while (!is_nfc_border(s, n, in.end))
        in.end++;
    if (in.begin < at)
        in.begin = at;
    enum err rc = add_nfc_length(e, s, at, in.begin, &normal);
    size_t begin = normal;
    if (rc == OK)
        rc = add_nfc_length(e, s, in.begin, in.end, &normal);
    if (rc == OK && normal > begin)
        rc = spans_push(&e->local, begin, normal);
    *done = (struct progress){in.end, normal};
    return rc;
}

/* Finds the marked spans of the stretch s[0..n), which lies at `base` of the
 * text. */
static enum err place_marks(struct encoder *e, const char *s, size_t n,
                            size_t base, bool is_normalised)
{
    struct progress done = {0, 0};
    enum err rc = OK;
    e->local.n = e->n_local_passed = 0;
    while (e->n_marks_passed < e->marked->n &&
           e->marked->v[e->n_marks_passed].end <= base)
        e->n_marks_passed++;
    for (size_t i = e->n_marks_passed; i < e->marked->n && rc == OK; i++) {
        struct span in = e->marked->v[i];
        if (in.begin >= base + n)
            break;
        in.begin = in.begin > base ? in.begin - base : 0;
        in.end = in.end < base + n ? in.end - base : n;
        if (is_normalised)
            rc = in.end > done.at ? place_normal(e, s, n, in, &done) : OK;
        else
            rc = spans_push(&e->local, in.begin, in.end);
    }
    return rc;
}

/* Notes the tokens from number `first` on if their word has a marked byte. */
static enum err note_word(struct encoder *e, size_t begin, size_t end,
                          size_t first)
{
    struct token_ranges *r = e->out->marked;
    const struct spans *l = &e->local;
    while (e->n_local_passed < l->n && l->v[e->n_local_passed].end <= begin)
        e->n_local_passed++;
    if (e->n_local_passed == l->n || l->v[e->n_local_passed].begin >= end ||
        first == e->out->n)
        return OK;
    if (r->n > 0 && r->v[r->n - 1].to == first) {
        r->v[r->n - 1].to = e->out->n;
        return OK;
    }
    void *p = grow_array(r->v, &r->cap, r->n + 1, sizeof(*r->v));
    if (p == NULL)
        return ERR_NOMEM;
    r->v = p;
    r->v[r->n++] = (struct token_range){first, e->out->n};
    return OK;
}

static enum err encode_word(struct encoder *e, const char *s, size_t n)
{
    if (pretok_ignores_merges(e->t->pretok)) {
        int32_t id = tokenizer_lookup(e->t, s, n);
        if (id >= 0)
            return tokens_push(e->out, id);
    }
    return tokenizer_bpe(e->t, &e->bpe, s, n, e->out);
}

/* Text without special tokens, at `base` of the whole: steps 2 to 4 of
 * tokenizer.h. */
static enum err encode_plain(struct encoder *e, const char *s, size_t n,
                             size_t base)
{
    enum err rc = OK;
    bool marks = e->marked != NULL;
    if (marks)
        rc = place_marks(e, s, n, base,
                         pretok_wants_nfc(e->t->pretok) &&
                             !nfc_is_trivial(s, n));
    if (rc != OK)
        return rc;
    if (pretok_wants_nfc(e->t->pretok) && !nfc_is_trivial(s, n)) {
        buf_clear(&e->normal);
        rc = nfc_append(&e->normal, s, n);
        if (rc != OK)
            return rc;
        s = e->normal.data;
        n = e->normal.len;
    }
    size_t begin, end;
    pretok_scan_start(&e->scan, s, n);
    while (pretok_scan_next(&e->scan, &begin, &end, &rc)) {
        size_t first = e->out->n;
        rc = tokens_check_stop(e->out);
        if (rc == OK)
            rc = encode_word(e, s + begin, end - begin);
        if (rc == OK && marks)
            rc = note_word(e, begin, end, first);
        if (rc != OK)
            return rc;
    }
    return rc;
}

/* The first special token in s[in.begin .. in.end): its id, place and length;
 * -1: none. */
static int32_t find_special(const struct tokenizer *t, const char *s,
                            struct span in, size_t *at, size_t *len)
{
    for (size_t i = in.begin; i < in.end; i++) {
        int32_t id = tokenizer_match_special(t, s + i, in.end - i, len);
        if (id >= 0) {
            *at = i;
            return id;
        }
    }
    return -1;
}

static enum err encode_text(struct encoder *e, const char *s, size_t n,
                            const struct span *span, size_t n_spans)
{
    enum err rc = OK;
    size_t done = 0;
    for (size_t k = 0; k < n_spans && rc == OK; k++) {
        struct span in = span[k];
        size_t at = 0, len = 0;
        int32_t id;
        while (rc == OK && (id = find_special(e->t, s, in, &at, &len)) >= 0) {
            rc = encode_plain(e, s + done, at - done, done);
            if (rc == OK)
                rc = tokens_push(e->out, id);
            done = in.begin = at + len;
        }
    }
    if (rc == OK)
        rc = encode_plain(e, s + done, n - done, done);
    return rc;
}

/* Valid text, from BOS to the end; on an error *out is as it was. */
static enum err encode_valid(const struct tokenizer *t, const struct buf *text,
                             const struct spans *special,
                             const struct spans *marked, unsigned flags,
                             struct tokens *out)
{
    struct encoder e = {.t = t, .out = out};
    size_t before = out->n, marks_before = out->marked ? out->marked->n : 0;
    if (out->marked && marked->n > 0)
        e.marked = marked;
    const char *s = text->len > 0 ? text->data : "";
    if (out->max != 0 &&
        (out->n > out->max ||
         tokenizer_least_tokens(t, text->len) > out->max - out->n))
        return ERR_BUDGET;
    enum err rc = pretok_scan_init(&e.scan, t->pretok);
    if (rc == OK && (flags & TOKENIZER_ADD_BOS) != 0 && t->add_bos) {
        size_t len = 0;
        bool has_bos =
            special->n > 0 && special->v[0].begin == 0 &&
            tokenizer_match_special(t, s, special->v[0].end, &len) == t->bos;
        if (!has_bos)
            rc = tokens_push(out, t->bos);
    }
    if (rc == OK)
        rc = encode_text(&e, s, text->len, special->v, special->n);
    pretok_scan_fini(&e.scan);
    tokenizer_bpe_fini(&e.bpe);
    buf_fini(&e.normal);
    buf_fini(&e.piece);
    free(e.local.v);
    if (rc != OK) {
        out->n = before;
        if (out->marked)
            out->marked->n = marks_before;
    }
    return rc;
}

/* One that continues the last becomes one with it, so that a special token
 * may lie across them. */
static enum err spans_add(struct spans *v, size_t begin, size_t end)
{
    if (begin == end)
        return OK;
    if (v->n > 0 && v->v[v->n - 1].end == begin) {
        v->v[v->n - 1].end = end;
        return OK;
    }
    return spans_push(v, begin, end);
}

enum err tokenizer_encode_segments(const struct tokenizer *t,
                                   const struct text_segment *seg,
                                   size_t n_segs, unsigned flags,
                                   struct tokens *out)
{
    struct buf text = {0};
    struct spans special = {0}, marked = {0};
    enum err rc = OK;
    size_t total = 0;
    for (size_t i = 0; i < n_segs; i++) {
        if (seg[i].n > TOKENIZER_TEXT_MAX - total)
            return ERR_INVAL;
        total += seg[i].n;
    }
    for (size_t i = 0; i < n_segs && rc == OK; i++) {
        size_t begin = text.len;
        rc = utf8_append_repaired(&text, seg[i].s, seg[i].n);
        if (rc == OK && seg[i].special)
            rc = spans_add(&special, begin, text.len);
        if (rc == OK && seg[i].marked && out->marked != NULL)
            rc = spans_add(&marked, begin, text.len);
    }
    if (rc == OK)
        rc = encode_valid(t, &text, &special, &marked, flags, out);
    buf_fini(&text);
    free(special.v);
    free(marked.v);
    return rc;
}

enum err tokenizer_encode(const struct tokenizer *t, const char *text, size_t n,
                          unsigned flags, struct tokens *out)
{
    struct text_segment seg = {
        .s = text, .n = n, .special = (flags & TOKENIZER_PARSE_SPECIAL) != 0};
    return tokenizer_encode_segments(t, &seg, 1, flags, out);
}
