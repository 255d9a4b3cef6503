/* The settings as JSON. */
#include "base/json.h"
#include "config/config.h"
#include "config/option.h"

#define PUT(x)                                                                 \
    do {                                                                       \
        enum err put_rc_ = (x);                                                \
        if (put_rc_ != OK)                                                     \
            return put_rc_;                                                    \
    } while (0)

static enum err put_list(struct buf *out, const struct config_list *l)
{
    PUT(buf_putc(out, '['));
    for (size_t i = 0; i < l->n; i++) {
        PUT(buf_puts(out, i > 0 ? "," : ""));
        PUT(json_put_text(out, l->item[i]));
    }
    return buf_putc(out, ']');
}

static enum err put_value(struct buf *out, const struct option *o,
                          const void *field)
{
    int64_t v = 0;
    switch (o->type) {
    case OPT_STRING:
        return json_put_text(out, *(char *const *)field);
    case OPT_LIST:
    case OPT_WORDS:
        return put_list(out, field);
    case OPT_BOOL:
        return buf_puts(out, *(const bool *)field ? "true" : "false");
    case OPT_REAL:
        return json_put_double(out, *(const double *)field);
    case OPT_BYTES:
        return buf_printf(out, "%llu",
                          (unsigned long long)*(const uint64_t *)field);
    case OPT_CHOICE:
        return json_put_text(out, o->choices[*(const int64_t *)field]);
    case OPT_INT:
    case OPT_TIME:
        v = *(const int64_t *)field;
        break;
    }
    return buf_printf(out, "%lld", (long long)v);
}

enum err config_put_json(struct buf *out, const struct config *c)
{
    size_t n;
    const struct option *o = option_table(&n);
    PUT(buf_putc(out, '{'));
    for (size_t i = 0; i < n; i++) {
        PUT(buf_puts(out, i > 0 ? "," : ""));
        PUT(json_put_key(out, o[i].name));
        PUT(put_value(out, &o[i], (const char *)c + o[i].field));
    }
    return buf_putc(out, '}');
}
