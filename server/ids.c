#include "server/ids.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"

enum { ID_BYTES = 12, CLIENT_ID_MAX = 128 };

void ids_make(char *out, const char *prefix)
{
    uint8_t bytes[ID_BYTES];
    char hex[2 * ID_BYTES + 1];
    /* Without random bytes an id is still unique on this machine. */
    if (hash_random(bytes, sizeof(bytes)) != OK) {
        int64_t now = clock_us();
        memset(bytes, 0, sizeof(bytes));
        memcpy(bytes, &now, sizeof(now));
    }
    hash_hex(hex, bytes, sizeof(bytes));
    snprintf(out, IDS_MAX, "%s%s", prefix, hex);
}

bool ids_is_sane(const char *id)
{
    size_t n = strlen(id);
    if (n == 0 || n > CLIENT_ID_MAX)
        return false;
    for (size_t i = 0; i < n; i++) {
        char c = id[i];
        bool fine = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                    (c >= 'A' && c <= 'Z') || strchr("-_.:/=+@", c);
        if (!fine)
            return false;
    }
    return true;
}
