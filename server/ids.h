/* ids.h - names of requests and answers.
 *
 * Threads: any; nothing is kept.
 */
#ifndef SERVER_IDS_H
#define SERVER_IDS_H

#include <stdbool.h>
#include <stddef.h>

enum { IDS_MAX = 48 };

/* prefix and 24 random hexadecimal digits. out holds IDS_MAX bytes. */
void ids_make(char *out, const char *prefix);

/* May a client's own request id be repeated in our headers and logs? 1 to 128
 * letters, digits and - _ . : / = + @ only: nothing that could start a header,
 * a log field or a quoted string. */
bool ids_is_sane(const char *id);

#endif
