/* json_internal.h - the check that runs before cJSON sees a text.
 *
 * Only for the files of the module json.
 */
#ifndef BASE_JSON_INTERNAL_H
#define BASE_JSON_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

enum {
    JSON_EXACT_DIGITS = 16, /* from here on a double may lose digits */
    JSON_NUMBER_MAX = 60    /* cJSON reads at most 63 characters of one */
};

/* Checks text[0..n) and mends it in place without moving a byte, so that
 * offsets in errors are those of the client: lone surrogate escapes become
 * \ufffd, numbers of more than JSON_NUMBER_MAX characters are rewritten with
 * 17 digits and blanks. text[n] must be readable and 0. *has_long: some
 * number has JSON_EXACT_DIGITS characters or more. What is no JSON for other
 * reasons is left for the parser to refuse. */
MUST_CHECK enum err json_scan(char *text, size_t n, bool *has_long,
                              struct errmsg *m);

/* The next number token at or after *pos, strings skipped: its length, with
 * *pos at its start; 0 where there is none. */
size_t json_next_number(const char *text, size_t n, size_t *pos);

#endif
