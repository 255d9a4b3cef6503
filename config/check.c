#include <inttypes.h>
#include <string.h>

#include "config/config.h"

static enum err check_origin(const char *origin, struct errmsg *m)
{
    if (strcmp(origin, "*") == 0)
        return OK;
    const char *rest = strstr(origin, "://");
    if (rest == NULL || rest == origin || rest[3] == '\0' ||
        strpbrk(rest + 3, "/?# ") != NULL)
        return err_set(m, ERR_INVAL,
                       "--cors-origin: '%.80s' is not an origin like "
                       "https://chat.example or *; it has a scheme and a "
                       "host, and no path",
                       origin);
    return OK;
}

/* What a name in a request can be. */
static enum err check_alias(const char *alias, struct errmsg *m)
{
    enum { ALIAS_MAX = 128 };
    size_t n = strlen(alias);
    if (n > ALIAS_MAX)
        return err_set(m, ERR_INVAL,
                       "--alias: '%.40s...' has %zu bytes, more than %d", alias,
                       n, ALIAS_MAX);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)alias[i] <= ' ' || alias[i] == 0x7F)
            return err_set(m, ERR_INVAL,
                           "--alias: '%.80s' holds blanks or control "
                           "characters",
                           alias);
    return OK;
}

/* What never leaves a head must fit under its floor. */
static enum err check_floor(const struct config *c, struct errmsg *m)
{
    int64_t least = c->protect_sinks + c->protect_recent;
    if (c->min_tokens_per_head < least)
        return err_set(m, ERR_INVAL,
                       "--min-tokens-per-head: %" PRId64
                       " is less than the %" PRId64
                       " tokens that --protect-sinks and --protect-recent "
                       "keep in every head",
                       c->min_tokens_per_head, least);
    if (c->session_tokens > 0 && c->session_tokens < c->min_tokens_per_head)
        return err_set(m, ERR_INVAL,
                       "--session-tokens: a cap of %" PRId64
                       " is less than the %" PRId64
                       " tokens of --min-tokens-per-head; 0 means no cap",
                       c->session_tokens, c->min_tokens_per_head);
    return OK;
}

/* Whether the names mean something is known where the gates are. */
static enum err check_exact(const struct config *c, struct errmsg *m)
{
    if (strcmp(c->policy, "exact") != 0 && strcmp(c->policy, "none") != 0)
        return OK;
    const char *other = c->session_tokens > 0  ? "--session-tokens"
                        : c->unbounded_context ? "--unbounded-context"
                                               : NULL;
    if (!other)
        return OK;
    return err_set(m, ERR_INVAL,
                   "%s: a conversation must forget for it, and --policy %s "
                   "never does",
                   other, c->policy);
}

enum err config_check(const struct config *c, uint64_t memory_total,
                      struct errmsg *m)
{
    if (memory_total > 0 && c->kv_memory > memory_total)
        return err_set(m, ERR_INVAL,
                       "--kv-memory: %" PRIu64
                       " bytes are more than the %" PRIu64
                       " bytes of memory that this process can have",
                       c->kv_memory, memory_total);
    if (c->host[0] == '\0')
        return err_set(m, ERR_INVAL, "--host: the address is empty");
    if (c->max_context == 1)
        return err_set(m, ERR_INVAL,
                       "--max-context: 1 token holds no prompt with an answer");
    if (c->gates[0] == '\0')
        return err_set(m, ERR_INVAL,
                       "--gates: the name is empty; auto and none are words "
                       "for it");
    enum err rc = check_floor(c, m);
    if (rc == OK)
        rc = check_exact(c, m);
    for (size_t i = 0; i < c->cors_origin.n && rc == OK; i++)
        rc = check_origin(c->cors_origin.item[i], m);
    for (size_t i = 0; i < c->alias.n && rc == OK; i++)
        rc = check_alias(c->alias.item[i], m);
    return rc;
}
