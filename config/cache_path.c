#include <stdio.h>
#include <stdlib.h>

#include "config/config.h"

enum err config_cache_path(char *out, size_t size, const char *name,
                           struct errmsg *m)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n;
    if (cache != NULL && cache[0] != '\0')
        n = snprintf(out, size, "%s/ebb/%s", cache, name);
    else if (home != NULL && home[0] != '\0')
        n = snprintf(out, size, "%s/.cache/ebb/%s", home, name);
    else
        return err_set(m, ERR_NOTFOUND,
                       "neither HOME nor XDG_CACHE_HOME is set to look for %s "
                       "in the user's cache folder",
                       name);
    return n >= 0 && (size_t)n < size
               ? OK
               : err_set(m, ERR_INVAL, "the path of %s is too long", name);
}
