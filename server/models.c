#include "server/models.h"

#include <string.h>

#include "base/json.h"

const char *models_find(const struct server_options *o, const char *name)
{
    if (strcmp(name, o->model_id) == 0)
        return o->model_id;
    for (size_t i = 0; i < o->n_aliases; i++)
        if (strcmp(name, o->aliases[i]) == 0)
            return o->aliases[i];
    return o->any_model ? o->model_id : NULL;
}

enum err models_unknown(struct api_error *e, const char *name)
{
    char shown[API_SHOWN_MAX + 4];
    api_error_shown(shown, name, strlen(name));
    return api_error_set(e, 404, "model_not_found", "model",
                         "The model `%s` does not exist or you do not have "
                         "access to it.",
                         shown);
}

static enum err put_entry(struct buf *out, const struct server_options *o,
                          const char *id)
{
    enum err rc = buf_puts(out, "{\"id\":");
    if (rc == OK)
        rc = json_put_text(out, id);
    if (rc == OK)
        rc = buf_printf(out,
                        ",\"object\":\"model\",\"created\":%lld,"
                        "\"owned_by\":\"ebb\",\"context_length\":%u,"
                        "\"max_model_len\":%u}",
                        (long long)o->model_created, o->max_context,
                        o->max_context);
    return rc;
}

/* Whether the name of alias i is that of an entry before it. */
static bool is_listed(const struct server_options *o, size_t i)
{
    if (strcmp(o->aliases[i], o->model_id) == 0)
        return true;
    for (size_t k = 0; k < i; k++)
        if (strcmp(o->aliases[i], o->aliases[k]) == 0)
            return true;
    return false;
}

enum err models_list(struct buf *out, const struct server_options *o)
{
    enum err rc = buf_puts(out, "{\"object\":\"list\",\"data\":[");
    if (rc == OK)
        rc = put_entry(out, o, o->model_id);
    for (size_t i = 0; i < o->n_aliases && rc == OK; i++) {
        if (is_listed(o, i))
            continue;
        rc = buf_putc(out, ',');
        if (rc == OK)
            rc = put_entry(out, o, o->aliases[i]);
    }
    return rc == OK ? buf_puts(out, "]}") : rc;
}

enum err models_one(struct buf *out, const struct server_options *o,
                    const char *id, struct api_error *e)
{
    const char *found = models_find(o, id);
    return found ? put_entry(out, o, found) : models_unknown(e, id);
}
