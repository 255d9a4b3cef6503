#include "base/hash.h"

#include <limits.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>

#include "base/file.h"

enum err hash_init(struct hash *h)
{
    h->ctx = EVP_MD_CTX_new();
    if (h->ctx == NULL)
        return ERR_NOMEM;
    if (EVP_DigestInit_ex(h->ctx, EVP_sha256(), NULL) == 1)
        return OK;
    hash_fini(h);
    return ERR_INTERNAL;
}

enum err hash_update(struct hash *h, const void *data, size_t n)
{
    return EVP_DigestUpdate(h->ctx, data, n) == 1 ? OK : ERR_INTERNAL;
}

enum err hash_final(struct hash *h, uint8_t out[HASH_BYTES])
{
    return EVP_DigestFinal_ex(h->ctx, out, NULL) == 1 ? OK : ERR_INTERNAL;
}

void hash_fini(struct hash *h)
{
    EVP_MD_CTX_free(h->ctx);
    h->ctx = NULL;
}

enum err hash_sha256(uint8_t out[HASH_BYTES], const void *data, size_t n)
{
    struct hash h;
    enum err rc = hash_init(&h);
    if (rc != OK)
        return rc;
    rc = hash_update(&h, data, n);
    if (rc == OK)
        rc = hash_final(&h, out);
    hash_fini(&h);
    return rc;
}

void hash_hex(char *out, const uint8_t *bytes, size_t n)
{
    static const char digit[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digit[bytes[i] >> 4];
        out[2 * i + 1] = digit[bytes[i] & 15];
    }
    out[2 * n] = '\0';
}

enum err hash_file(char out[HASH_HEX], const char *path, struct errmsg *m)
{
    struct file_map map;
    uint8_t digest[HASH_BYTES];
    enum err rc = file_map_open(&map, path, m);
    if (rc != OK)
        return rc;
    rc = hash_sha256(digest, map.data, map.size);
    file_map_close(&map);
    if (rc != OK)
        return err_set(m, rc, "cannot hash %s", path);
    hash_hex(out, digest, sizeof(digest));
    return OK;
}

enum err hash_random(void *out, size_t n)
{
    unsigned char *p = out;
    while (n > 0) {
        int part = n < INT_MAX ? (int)n : INT_MAX;
        if (RAND_bytes(p, part) != 1)
            return ERR_IO;
        p += part;
        n -= (size_t)part;
    }
    return OK;
}

bool hash_equal(const void *a, const void *b, size_t n)
{
    return CRYPTO_memcmp(a, b, n) == 0;
}
