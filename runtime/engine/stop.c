#include "runtime/engine/stop.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static uint32_t advance(const struct stop *s, uint32_t i, char c)
{
    uint32_t k = s->at[i];
    while (k > 0 && s->text[i][k] != c)
        k = s->fail[i][k - 1];
    return s->text[i][k] == c ? k + 1 : 0;
}

static uint16_t *fail_new(const char *text, uint32_t len)
{
    uint16_t *fail = malloc(len * sizeof(*fail));
    if (!fail)
        return NULL;
    fail[0] = 0;
    uint32_t k = 0;
    for (uint32_t i = 1; i < len; i++) {
        while (k > 0 && text[k] != text[i])
            k = fail[k - 1];
        if (text[k] == text[i])
            k++;
        fail[i] = (uint16_t)k;
    }
    return fail;
}

enum err stop_init(struct stop *s, const char *const *text, const size_t *len,
                   uint32_t n)
{
    memset(s, 0, sizeof(*s));
    assert(n <= GEN_STOPS_MAX);
    for (uint32_t i = 0; i < n; i++) {
        assert(len[i] > 0 && len[i] <= GEN_STOP_BYTES_MAX);
        s->text[i] = text[i];
        s->len[i] = (uint32_t)len[i];
        s->fail[i] = fail_new(text[i], s->len[i]);
        if (!s->fail[i])
            return ERR_NOMEM;
        s->n++;
    }
    return OK;
}

void stop_fini(struct stop *s)
{
    for (uint32_t i = 0; i < s->n; i++)
        free(s->fail[i]);
    memset(s, 0, sizeof(*s));
}

/* The stop string of which most is at the end of the text. */
static uint32_t longest(const struct stop *s)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < s->n; i++) {
        if (s->at[i] > s->at[best])
            best = i;
    }
    return best;
}

static uint32_t held_bytes(const struct stop *s)
{
    return s->n > 0 ? s->at[longest(s)] : 0;
}

/* Length of the longest stop string that is complete; 0: none is. */
static uint32_t complete(const struct stop *s)
{
    uint32_t len = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->at[i] == s->len[i] && s->len[i] > len)
            len = s->len[i];
    }
    return len;
}

enum err stop_push(struct stop *s, const char *text, size_t n, struct buf *out)
{
    assert(!s->matched);
    if (s->n == 0)
        return buf_append(out, text, n);
    /* What was held is a prefix of this string. */
    const char *old = s->text[longest(s)];
    size_t held = held_bytes(s), seen = 0, cut = 0;

    while (seen < n && cut == 0) {
        for (uint32_t i = 0; i < s->n; i++)
            s->at[i] = advance(s, i, text[seen]);
        seen++;
        cut = complete(s);
    }
    s->matched = cut > 0;
    size_t stays = s->matched ? cut : held_bytes(s);
    size_t shown = held + seen - stays;
    size_t from_old = shown < held ? shown : held;

    enum err rc = buf_append(out, old, from_old);
    if (rc == OK)
        rc = buf_append(out, text, shown - from_old);
    return rc;
}

enum err stop_flush(struct stop *s, struct buf *out)
{
    assert(!s->matched);
    if (s->n == 0)
        return OK;
    uint32_t i = longest(s);
    enum err rc = buf_append(out, s->text[i], s->at[i]);
    memset(s->at, 0, sizeof(s->at));
    return rc;
}
