#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/grow.h"
#include "base/utf8.h"
#include "runtime/text/nfc.h"
#include "runtime/text/tokenizer_internal.h"

/* One call of tokenizer_encode: its text and its working memory. */
struct encoder {
    const struct tokenizer *t;
    struct pretok_scan scan;
    struct bpe_scratch bpe;
    struct buf normal; /* NFC of one stretch */
    struct tokens *out;
};

/* Bytes [begin, end) of the text in which special tokens are recognised. */
struct span {
    size_t begin, end;
};

struct spans {
    struct span *v;
    size_t n, cap;
};

static enum err encode_word(struct encoder *e, const char *s, size_t n)
{
    if (pretok_ignores_merges(e->t->pretok)) {
        int32_t id = tokenizer_lookup(e->t, s, n);
        if (id >= 0)
            return tokens_push(e->out, id);
    }
    return tokenizer_bpe(e->t, &e->bpe, s, n, e->out);
}

/* Text without special tokens: steps 2 to 4 of tokenizer.h. */
static enum err encode_plain(struct encoder *e, const char *s, size_t n)
{
    enum err rc = OK;
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
        rc = tokens_check_stop(e->out);
        if (rc == OK)
            rc = encode_word(e, s + begin, end - begin);
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
            rc = encode_plain(e, s + done, at - done);
            if (rc == OK)
                rc = tokens_push(e->out, id);
            done = in.begin = at + len;
        }
    }
    if (rc == OK)
        rc = encode_plain(e, s + done, n - done);
    return rc;
}

/* Valid text, from BOS to the end; on an error *out is as it was. */
static enum err encode_valid(const struct tokenizer *t, const struct buf *text,
                             const struct spans *special, unsigned flags,
                             struct tokens *out)
{
    struct encoder e = {.t = t, .out = out};
    size_t before = out->n;
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
    if (rc != OK)
        out->n = before;
    return rc;
}

/* A stretch of marked text; one that continues the last becomes one with it,
 * so that a special token may lie across them. */
static enum err spans_add(struct spans *v, size_t begin, size_t end)
{
    if (begin == end)
        return OK;
    if (v->n > 0 && v->v[v->n - 1].end == begin) {
        v->v[v->n - 1].end = end;
        return OK;
    }
    void *p = grow_array(v->v, &v->cap, v->n + 1, sizeof(*v->v));
    if (p == NULL)
        return ERR_NOMEM;
    v->v = p;
    v->v[v->n++] = (struct span){begin, end};
    return OK;
}

enum err tokenizer_encode_segments(const struct tokenizer *t,
                                   const struct text_segment *seg,
                                   size_t n_segs, unsigned flags,
                                   struct tokens *out)
{
    struct buf text = {0};
    struct spans special = {0};
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
    }
    if (rc == OK)
        rc = encode_valid(t, &text, &special, flags, out);
    buf_fini(&text);
    free(special.v);
    return rc;
}

enum err tokenizer_encode(const struct tokenizer *t, const char *text, size_t n,
                          unsigned flags, struct tokens *out)
{
    struct text_segment seg = {text, n, (flags & TOKENIZER_PARSE_SPECIAL) != 0};
    return tokenizer_encode_segments(t, &seg, 1, flags, out);
}
