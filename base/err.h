/* err.h - the error codes of the whole program, and the sentence beside them.
 *
 * A function that can fail returns enum err and takes an optional
 * struct errmsg *. The code says what a caller can do about it; the sentence
 * says what a person must know, with the offending value in it. It is written
 * once, where the fault is known, and passed up unchanged.
 *
 * Threads: an errmsg belongs to its caller; nothing here is shared.
 */
#ifndef BASE_ERR_H
#define BASE_ERR_H

enum err {
    OK = 0,
    ERR_INVAL,       /* the input is wrong: asking again cannot help */
    ERR_NOTFOUND,    /* what was named does not exist */
    ERR_CONFLICT,    /* it exists already, or somebody is using it */
    ERR_BUSY,        /* a limit of a tenant or of a queue: try again later */
    ERR_BUDGET,      /* no room under the KV budget just now */
    ERR_NOMEM,       /* the host has no memory left */
    ERR_IO,          /* a file or socket failed */
    ERR_UNSUPPORTED, /* valid, but this program cannot do it */
    ERR_CANCELLED,   /* the caller asked for the end */
    ERR_DEVICE,      /* an accelerator failed */
    ERR_INTERNAL     /* our own fault */
};

enum { ERRMSG_MAX = 512 };

struct errmsg {
    char text[ERRMSG_MAX]; /* always terminated and valid UTF-8 */
};

#define MUST_CHECK __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))

/* Writes the sentence into *m (nothing if m is NULL) and returns `code`, so
 * that a fault is one line: return err_set(m, ERR_INVAL, "...", ...). Too long
 * a sentence is cut at a character border and ends in "..."; bytes that are
 * not UTF-8, and control characters, become '?'. */
enum err err_set(struct errmsg *m, enum err code, const char *fmt, ...)
    PRINTF_LIKE(3, 4);

/* A short lower-case name such as "invalid"; for logs, never for clients. */
const char *err_name(enum err code);

#endif
