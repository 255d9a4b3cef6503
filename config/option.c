#include "config/option.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

const struct option *option_find(const char *name)
{
    size_t n;
    const struct option *o = option_table(&n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(o[i].name, name) == 0)
            return &o[i];
    return NULL;
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Optimal string alignment: as the usual table of edit distances, with a swap
 * of neighbours as one step. */
int option_distance(const char *a, const char *b)
{
    enum { N = OPTION_NAME_MAX + 1 };
    int d[N][N];
    int na = (int)strnlen(a, N - 1), nb = (int)strnlen(b, N - 1);
    for (int i = 0; i <= na; i++)
        d[i][0] = i;
    for (int j = 0; j <= nb; j++)
        d[0][j] = j;
    for (int i = 1; i <= na; i++)
        for (int j = 1; j <= nb; j++) {
            int same = a[i - 1] == b[j - 1] ? 0 : 1;
            int v = least(d[i - 1][j] + 1, d[i][j - 1] + 1);
            v = least(v, d[i - 1][j - 1] + same);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                v = least(v, d[i - 2][j - 2] + 1);
            d[i][j] = v;
        }
    return d[na][nb];
}

const struct option *option_nearest(const char *name)
{
    size_t n;
    const struct option *o = option_table(&n);
    const struct option *best = &o[0];
    for (size_t i = 1; i < n; i++)
        if (option_distance(name, o[i].name) <
            option_distance(name, best->name))
            best = &o[i];
    return best;
}

void option_flag(char out[OPTION_NAME_MAX + 8], const struct option *o)
{
    snprintf(out, OPTION_NAME_MAX + 8, "--%s", o->name);
    for (char *p = out; *p != '\0'; p++)
        if (*p == '_')
            *p = '-';
}

void option_variable(char out[OPTION_NAME_MAX + 8], const struct option *o)
{
    snprintf(out, OPTION_NAME_MAX + 8, "EBB_%s", o->name);
    for (char *p = out; *p != '\0'; p++)
        *p = (char)toupper((unsigned char)*p);
}
