#include "server/cors.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

enum { HEADER_LIST_MAX = 4096 };

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* 127.a.b.c, nothing else of four numbers. */
static bool is_loopback_v4(const char *s, size_t n)
{
    size_t dots = 0;
    if (n < 9 || strncmp(s, "127.", 4) != 0)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '.') {
            if (i + 1 == n || s[i + 1] == '.')
                return false;
            dots++;
        } else if (!is_digit(s[i])) {
            return false;
        }
    }
    return dots == 3;
}

static bool is_local_host(const char *s, size_t n)
{
    static const char name[] = "localhost";
    const size_t len = sizeof(name) - 1;
    if (n == 5 && memcmp(s, "[::1]", 5) == 0)
        return true;
    if (is_loopback_v4(s, n))
        return true;
    if (n < len || strncasecmp(s + n - len, name, len) != 0)
        return false;
    return n == len || (n > len + 1 && s[n - len - 1] == '.');
}

/* What follows the scheme of an origin; NULL where it is none of http. */
static const char *authority(const char *origin)
{
    if (strncmp(origin, "http://", 7) == 0)
        return origin + 7;
    return strncmp(origin, "https://", 8) == 0 ? origin + 8 : NULL;
}

/* Bytes of the host in "host" or "host:port"; 0: it is neither. */
static size_t host_length(const char *s)
{
    size_t n = strlen(s);
    const char *colon = strrchr(s, ':');
    /* A colon inside the brackets of an IPv6 address is no port. */
    if (colon && !strchr(colon, ']')) {
        const char *p = colon + 1;
        if (!*p)
            return 0;
        for (; *p; p++)
            if (!is_digit(*p))
                return 0;
        n = (size_t)(colon - s);
    }
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        bool fine = is_digit(c) || (c >= 'a' && c <= 'z') ||
                    (c >= 'A' && c <= 'Z') || strchr(".-_[]:", c);
        if (!fine)
            return 0;
    }
    return n;
}

bool cors_is_local(const char *origin)
{
    const char *s = origin ? authority(origin) : NULL;
    return s && is_local_host(s, host_length(s));
}

bool cors_host_allowed(const char *host, const char *own,
                       const char *const *list, size_t n)
{
    size_t len = host_length(host);
    if (len == 0)
        return false;
    if (is_local_host(host, len))
        return true;
    /* Nobody on the web can own a name without a dot. */
    if (!memchr(host, '.', len) && !memchr(host, ':', len))
        return true;
    if (strlen(own) == len && strncasecmp(host, own, len) == 0)
        return true;
    for (size_t i = 0; i < n; i++) {
        const char *s = authority(list[i]);
        if (strcmp(list[i], "*") == 0 ||
            (s && host_length(s) == len && strncasecmp(s, host, len) == 0))
            return true;
    }
    return false;
}

bool cors_is_same(const char *origin, const char *host)
{
    const char *s = origin ? authority(origin) : NULL;
    return s && host && host[0] && strcasecmp(s, host) == 0;
}

bool cors_allows(const char *origin, const char *const *list, size_t n)
{
    if (n == 0)
        return cors_is_local(origin);
    for (size_t i = 0; origin && i < n; i++)
        if (strcmp(list[i], "*") == 0 || strcmp(list[i], origin) == 0)
            return true;
    return false;
}

bool cors_is_header_list(const char *list)
{
    /* The library takes no header without a value. */
    if (!list || !list[0] || strlen(list) > HEADER_LIST_MAX)
        return false;
    for (; *list; list++) {
        char c = *list;
        bool fine = is_digit(c) || (c >= 'a' && c <= 'z') ||
                    (c >= 'A' && c <= 'Z') || strchr("-_, *", c);
        if (!fine)
            return false;
    }
    return true;
}
