/* hash.h - SHA-256, unguessable random bytes and a comparison that takes the
 * same time whatever the bytes are. A thin layer over OpenSSL's libcrypto.
 *
 * Threads: any; a struct hash belongs to one thread at a time.
 */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { HASH_BYTES = 32, HASH_HEX = 2 * HASH_BYTES + 1 };

/* A SHA-256 under way. */
struct hash {
    void *ctx; /* EVP_MD_CTX, owned */
};

MUST_CHECK enum err hash_init(struct hash *h); /* ERR_NOMEM */
MUST_CHECK enum err hash_update(struct hash *h, const void *data, size_t n);
/* Writes the digest; the state is then only good for hash_fini(). */
MUST_CHECK enum err hash_final(struct hash *h, uint8_t out[HASH_BYTES]);
void hash_fini(struct hash *h); /* a zeroed one is allowed */

/* All at once. */
MUST_CHECK enum err hash_sha256(uint8_t out[HASH_BYTES], const void *data,
                                size_t n);

/* Lower-case hexadecimal of n bytes: 2 n characters and a NUL. */
void hash_hex(char *out, const uint8_t *bytes, size_t n);

/* SHA-256 of a whole file, as hexadecimal. On error the sentence names the
 * file. */
MUST_CHECK enum err hash_file(char out[HASH_HEX], const char *path,
                              struct errmsg *m);

/* n bytes from the system's generator: for keys and ids. */
MUST_CHECK enum err hash_random(void *out, size_t n);

/* Compares in time that depends on n only. For secrets: compare their hashes,
 * so that not even the length is told. */
bool hash_equal(const void *a, const void *b, size_t n);

#endif
