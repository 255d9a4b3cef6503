#include "base/json.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_internal.h"

/* A parsed tree on its way out: the text is walked once more beside it when
 * it holds numbers whose digits must be kept. */
struct check {
    const char *text;
    size_t n, pos;
    bool has_long;
    struct errmsg *m;
};

static int by_key(const void *a, const void *b)
{
    const cJSON *const *x = a, *const *y = b;
    return strcmp((*x)->string, (*y)->string);
}

static enum err twice(const char *key, struct errmsg *m)
{
    return err_set(m, ERR_INVAL, "the key \"%.64s\" occurs twice in an object",
                   key);
}

/* Sorting, not hashing: no choice of keys makes it slow. */
static enum err check_keys_sorted(const cJSON *obj, size_t n, struct errmsg *m)
{
    const cJSON **item = malloc(n * sizeof(const cJSON *));
    if (item == NULL)
        return err_set(m, ERR_NOMEM, "no memory for an object of %zu keys", n);
    size_t k = 0;
    for (const cJSON *c = obj->child; c != NULL; c = c->next)
        item[k++] = c;
    qsort(item, n, sizeof(item[0]), by_key);
    enum err rc = OK;
    for (size_t i = 1; i < n && rc == OK; i++)
        if (by_key(&item[i - 1], &item[i]) == 0)
            rc = twice(item[i]->string, m);
    free(item);
    return rc;
}

static enum err check_keys(const cJSON *obj, struct errmsg *m)
{
    enum { FEW = 8 };
    size_t n = 0;
    for (const cJSON *c = obj->child; c != NULL; c = c->next)
        n++;
    if (n > FEW)
        return check_keys_sorted(obj, n, m);
    for (const cJSON *c = obj->child; c != NULL; c = c->next)
        for (const cJSON *d = c->next; d != NULL; d = d->next)
            if (strcmp(c->string, d->string) == 0)
                return twice(c->string, m);
    return OK;
}

/* The digits of a long whole number, trailing ".0" left out; 0 where the
 * token is none. */
static size_t whole_digits(const char *p, size_t len)
{
    size_t k = *p == '-' ? 1 : 0;
    while (k < len && isdigit((unsigned char)p[k]))
        k++;
    size_t rest = k;
    if (rest < len && p[rest] == '.')
        for (rest++; rest < len && p[rest] == '0';)
            rest++;
    return rest == len && k >= JSON_EXACT_DIGITS ? k : 0;
}

static enum err keep_digits(struct check *c, cJSON *item)
{
    size_t len = json_next_number(c->text, c->n, &c->pos);
    const char *p = c->text + c->pos;
    c->pos += len;
    size_t k = whole_digits(p, len);
    if (k == 0)
        return OK;
    item->valuestring = cJSON_malloc(k + 1);
    if (item->valuestring == NULL)
        return err_set(c->m, ERR_NOMEM, "no memory for a number");
    memcpy(item->valuestring, p, k);
    item->valuestring[k] = '\0';
    return OK;
}

static enum err check_item(struct check *c, cJSON *item)
{
    if (cJSON_IsNumber(item) && c->has_long)
        return keep_digits(c, item);
    if (cJSON_IsObject(item))
        return check_keys(item, c->m);
    return OK;
}

/* In the order of the text, with a stack of our own: the depth is bounded by
 * the scan. */
static enum err check_tree(struct check *c, cJSON *root)
{
    cJSON *open[JSON_DEPTH_MAX + 1];
    size_t depth = 0;
    cJSON *item = root;
    while (item != NULL) {
        enum err rc = check_item(c, item);
        if (rc != OK)
            return rc;
        if (item->child != NULL) {
            open[depth++] = item;
            item = item->child;
            continue;
        }
        while (item->next == NULL && depth > 0)
            item = open[--depth];
        item = item == root ? NULL : item->next;
    }
    return OK;
}

static enum err syntax_error(const char *text, size_t n, size_t at,
                             struct errmsg *m)
{
    at = at < n ? at : n;
    int shown = n - at < 16 ? (int)(n - at) : 16;
    return err_set(m, ERR_INVAL, "no valid JSON at byte %zu, near '%.*s'", at,
                   shown, text + at);
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* text is ours, mended, with a NUL at text[n]. */
static enum err parse_mended(cJSON **out, const char *text, size_t n,
                             bool has_long, struct errmsg *m)
{
    const char *end = NULL;
    cJSON *root = cJSON_ParseWithLengthOpts(text, n, &end, 0);
    if (root == NULL)
        return syntax_error(text, n, end == NULL ? n : (size_t)(end - text), m);
    struct check c = {text, n, 0, has_long, m};
    enum err rc = OK;
    while (end < text + n && is_blank(*end))
        end++;
    if (end < text + n)
        rc = err_set(m, ERR_INVAL,
                     "something follows the JSON document at byte %zu",
                     (size_t)(end - text));
    if (rc == OK)
        rc = check_tree(&c, root);
    if (rc == OK)
        *out = root;
    else
        cJSON_Delete(root);
    return rc;
}

enum err json_parse(cJSON **out, const char *text, size_t n, struct errmsg *m)
{
    size_t blank = 0;
    while (blank < n && is_blank(text[blank]))
        blank++;
    if (blank == n)
        return err_set(m, ERR_INVAL, "empty: a JSON document was expected");
    /* hex4() looks up to 12 bytes ahead of a backslash. */
    enum { AHEAD = 16 };
    char *copy = calloc(1, n + AHEAD);
    if (copy == NULL)
        return err_set(m, ERR_NOMEM, "no memory for %zu bytes of JSON", n);
    memcpy(copy, text, n);
    bool has_long = false;
    enum err rc = json_scan(copy, n, &has_long, m);
    if (rc == OK)
        rc = parse_mended(out, copy, n, has_long, m);
    free(copy);
    return rc;
}

const cJSON *json_get(const cJSON *obj, const char *key)
{
    return cJSON_IsObject(obj) ? cJSON_GetObjectItemCaseSensitive(obj, key)
                               : NULL;
}

const cJSON *json_get_set(const cJSON *obj, const char *key)
{
    const cJSON *item = json_get(obj, key);
    return cJSON_IsNull(item) ? NULL : item;
}

enum err json_int64(const cJSON *item, int64_t *out)
{
    if (!cJSON_IsNumber(item))
        return ERR_INVAL;
    if (item->valuestring != NULL) {
        errno = 0;
        long long v = strtoll(item->valuestring, NULL, 10);
        if (errno != 0)
            return ERR_UNSUPPORTED;
        *out = v;
        return OK;
    }
    double d = item->valuedouble;
    if (d != floor(d))
        return ERR_INVAL;
    /* 2^63 itself is out; -2^63 is in. */
    if (d >= 0x1p63 || d < -0x1p63)
        return ERR_UNSUPPORTED;
    *out = (int64_t)d;
    return OK;
}
