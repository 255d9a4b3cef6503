#include "runtime/text/detok.h"

static const char REPLACEMENT[] = "\xEF\xBF\xBD";

void detok_init(struct detok *d, const struct tokenizer *t)
{
    *d = (struct detok){.t = t};
}

/* Takes one byte: a character that it completes goes to *out. */
static enum err take_byte(struct detok *d, char byte, struct buf *out)
{
    d->held[d->n_held++] = byte;
    int len = utf8_decode(d->held, d->n_held, NULL);
    if (len < 0)
        return OK;
    enum err rc;
    if (len > 0) {
        rc = buf_append(out, d->held, d->n_held);
        d->n_held = 0;
        return rc;
    }
    rc = buf_append(out, REPLACEMENT, sizeof(REPLACEMENT) - 1);
    /* What came before was a well-formed beginning, so the fault is this
     * byte's: it may begin a character itself, unless it stands alone. */
    bool alone = d->n_held == 1;
    d->n_held = 0;
    return rc == OK && !alone ? take_byte(d, byte, out) : rc;
}

enum err detok_push(struct detok *d, int32_t id, struct buf *out)
{
    if (tokenizer_is_control(d->t, id))
        return OK;
    struct detok before = *d;
    size_t len = out->len;
    size_t n = 0;
    const char *s = tokenizer_token_bytes(d->t, id, &n);
    enum err rc = OK;
    for (size_t i = 0; i < n && rc == OK; i++)
        rc = take_byte(d, s[i], out);
    if (rc != OK) {
        *d = before;
        out->len = len;
        if (out->data != NULL)
            out->data[len] = '\0';
    }
    return rc;
}

enum err detok_flush(struct detok *d, struct buf *out)
{
    enum err rc = OK;
    if (d->n_held > 0)
        rc = buf_append(out, REPLACEMENT, sizeof(REPLACEMENT) - 1);
    if (rc == OK)
        d->n_held = 0;
    return rc;
}
