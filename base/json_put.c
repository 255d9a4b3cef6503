#include "base/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

static bool must_escape(uint32_t cp)
{
    return cp < 0x20 || cp == '"' || cp == '\\' || (cp >= 0x7F && cp <= 0x9F) ||
           cp == 0x2028 || cp == 0x2029;
}

static enum err put_escape(struct buf *b, uint32_t cp)
{
    static const char plain[] = "\"\\\b\f\n\r\t";
    static const char letter[] = "\"\\bfnrt";
    const char *p = cp < 0x80 && cp != 0 ? strchr(plain, (int)cp) : NULL;
    if (p != NULL) {
        char two[2] = {'\\', letter[p - plain]};
        return buf_append(b, two, 2);
    }
    return buf_printf(b, "\\u%04" PRIx32, cp);
}

/* One ill-formed byte at a time would give more than one U+FFFD for a cut
 * character; utf8_append_repaired() knows how many. */
static enum err put_characters(struct buf *b, const char *s, size_t n)
{
    size_t done = 0; /* s[done..i) needs no escape and is not yet written */
    size_t i = 0;
    while (i < n) {
        uint32_t cp = 0;
        int len = utf8_decode(s + i, n - i, &cp);
        if (len <= 0 || !must_escape(cp)) {
            i += len <= 0 ? 1 : (size_t)len;
            continue;
        }
        enum err rc = utf8_append_repaired(b, s + done, i - done);
        if (rc == OK)
            rc = put_escape(b, cp);
        if (rc != OK)
            return rc;
        i += (size_t)len;
        done = i;
    }
    return utf8_append_repaired(b, s + done, n - done);
}

enum err json_put_string(struct buf *b, const char *s, size_t n)
{
    size_t before = b->len;
    enum err rc = buf_reserve(b, n < SIZE_MAX / 2 ? n + 2 : n);
    if (rc == OK)
        rc = buf_putc(b, '"');
    if (rc == OK)
        rc = put_characters(b, s, n);
    if (rc == OK)
        rc = buf_putc(b, '"');
    if (rc != OK && b->data != NULL) {
        b->len = before;
        b->data[before] = '\0';
    }
    return rc;
}

enum err json_put_text(struct buf *b, const char *s)
{
    return json_put_string(b, s, strlen(s));
}

enum err json_put_key(struct buf *b, const char *key)
{
    enum err rc = json_put_text(b, key);
    return rc == OK ? buf_putc(b, ':') : rc;
}

enum err json_put_int(struct buf *b, int64_t v)
{
    return buf_printf(b, "%" PRId64, v);
}

enum err json_put_uint(struct buf *b, uint64_t v)
{
    return buf_printf(b, "%" PRIu64, v);
}

enum err json_put_bool(struct buf *b, bool v)
{
    return buf_puts(b, v ? "true" : "false");
}

void json_format_double(char out[JSON_DOUBLE_MAX], double v)
{
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(out, JSON_DOUBLE_MAX, "%.*g", digits, v);
        if (strtod(out, NULL) == v)
            break;
    }
}

enum err json_put_double(struct buf *b, double v)
{
    char text[JSON_DOUBLE_MAX];
    if (!isfinite(v))
        return ERR_INVAL;
    json_format_double(text, v);
    return buf_puts(b, text);
}

void json_format_float(char out[JSON_DOUBLE_MAX], float v)
{
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(out, JSON_DOUBLE_MAX, "%.*g", digits, (double)v);
        if (strtof(out, NULL) == v)
            break;
    }
}

enum err json_put_float(struct buf *b, float v)
{
    char text[JSON_DOUBLE_MAX];
    if (!isfinite(v))
        return ERR_INVAL;
    json_format_float(text, v);
    return buf_puts(b, text);
}

static enum err put_value(struct buf *b, const cJSON *v, int depth);

static enum err put_members(struct buf *b, const cJSON *v, int depth)
{
    bool is_object = cJSON_IsObject(v);
    enum err rc = buf_putc(b, is_object ? '{' : '[');
    for (const cJSON *c = v->child; c != NULL && rc == OK; c = c->next) {
        if (c != v->child)
            rc = buf_putc(b, ',');
        if (rc == OK && is_object)
            rc = json_put_key(b, c->string);
        if (rc == OK)
            rc = put_value(b, c, depth + 1);
    }
    return rc == OK ? buf_putc(b, is_object ? '}' : ']') : rc;
}

static enum err put_value(struct buf *b, const cJSON *v, int depth)
{
    if (depth > JSON_DEPTH_MAX)
        return ERR_INVAL;
    if (cJSON_IsObject(v) || cJSON_IsArray(v))
        return put_members(b, v, depth);
    if (cJSON_IsString(v))
        return json_put_text(b, v->valuestring);
    if (cJSON_IsNumber(v) && v->valuestring != NULL)
        return buf_puts(b, v->valuestring);
    if (cJSON_IsNumber(v))
        return json_put_double(b, v->valuedouble);
    if (cJSON_IsRaw(v))
        return buf_puts(b, v->valuestring);
    if (cJSON_IsBool(v))
        return json_put_bool(b, cJSON_IsTrue(v));
    return cJSON_IsNull(v) ? buf_puts(b, "null") : ERR_INVAL;
}

enum err json_put_value(struct buf *b, const cJSON *v)
{
    size_t before = b->len;
    enum err rc = put_value(b, v, 0);
    if (rc != OK && b->data != NULL) {
        b->len = before;
        b->data[before] = '\0';
    }
    return rc;
}
