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

bool cors_is_local(const char *origin)
{
    if (!origin)
        return false;
    if (strncmp(origin, "http://", 7) == 0)
        origin += 7;
    else if (strncmp(origin, "https://", 8) == 0)
        origin += 8;
    else
        return false;
    size_t n = strlen(origin);
    const char *colon = strrchr(origin, ':');
    /* A colon inside the brackets of an IPv6 address is no port. */
    if (colon && !strchr(colon, ']')) {
        const char *p = colon + 1;
        if (!*p)
            return false;
        for (; *p; p++)
            if (!is_digit(*p))
                return false;
        n = (size_t)(colon - origin);
    }
    for (size_t i = 0; i < n; i++) {
        char c = origin[i];
        bool fine = is_digit(c) || (c >= 'a' && c <= 'z') ||
                    (c >= 'A' && c <= 'Z') || strchr(".-_[]:", c);
        if (!fine)
            return false;
    }
    return is_local_host(origin, n);
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
    if (!list || strlen(list) > HEADER_LIST_MAX)
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
