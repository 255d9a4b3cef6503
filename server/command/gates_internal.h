/* gates_internal.h - what the files of `ebb gates` share.
 *
 * gates.c        which of them
 * gates_model.c  the model that gates belong to
 * gates_train.c  `ebb gates train`
 * gates_files.c  what it writes
 * gates_init.c   what it starts from
 * gates_origin.c how gates were made
 * gates_texts.c  what they learn from
 * gates_show.c   `ebb gates show`
 * gates_beta.c   what gates say about a text
 */
#ifndef SERVER_COMMAND_GATES_INTERNAL_H
#define SERVER_COMMAND_GATES_INTERNAL_H

#include <limits.h>
#include <stdatomic.h>

#include "base/buf.h"
#include "base/hash.h"
#include "config/flags.h"
#include "gates/gate_find.h"
#include "gates/train/frozen.h"
#include "gates/train/mat.h"
#include "gates/train/mix.h"
#include "runtime/model/model.h"
#include "server/command/model_file.h"

enum { GATES_DONE = 0, GATES_FAILED = 1, GATES_USAGE = 2 };

/* A model as the gates see it, and what they are trained with. */
struct gates_model {
    struct model_file file;
    struct model *model;   /* NULL after gates_model_load() */
    struct mat *mat;       /* NULL before it */
    struct frozen *frozen; /* the same */
    struct model_info info;
    char fingerprint[HASH_HEX]; /* the base model's, gguf_fingerprint() */
    char sha256[HASH_HEX];      /* of the file; "" before hash_file() */
};

/* Opens and checks the file. On error nothing is left; on OK the caller ends
 * *out with gates_model_close(). */
MUST_CHECK enum err gates_model_open(struct gates_model *out, const char *path,
                                     int64_t n_threads, struct errmsg *m);
/* What computing needs: frozen and mat. Seconds, and four bytes a weight. */
MUST_CHECK enum err gates_model_load(struct gates_model *g, struct errmsg *m);
void gates_model_close(struct gates_model *g); /* a zeroed one is allowed */

/* What gates of this model must fit. */
struct gate_shape gates_model_shape(const struct gates_model *g);

/* "plain=40,chat=20": kinds that are not named have no share. */
MUST_CHECK enum err gates_read_mix(uint32_t share[MIX_KINDS], const char *text,
                                   struct errmsg *m);
enum { GATES_MIX_BYTES = 128 };
/* The same text, kinds in their order and without those of no share. */
void gates_put_mix(char out[GATES_MIX_BYTES], const uint32_t share[MIX_KINDS]);

/* The texts that gates learn from. */
struct gates_texts {
    struct mix *mix;
    char sha256[HASH_HEX]; /* of all of them, in order */
    struct buf list;       /* for the metadata: "name sha256" each */
};

struct gates_texts_input {
    const struct config_list *files;
    const uint32_t *share; /* [MIX_KINDS] */
    uint64_t seed;
};

/* Reads all files. Borrows the model. The caller ends a zeroed or filled *t
 * with gates_texts_fini(), after an error too. */
MUST_CHECK enum err gates_read_texts(struct gates_texts *t,
                                     const struct model_file *model,
                                     const struct gates_texts_input *in,
                                     struct errmsg *m);
/* The hash and the list alone: nothing is tokenised, mix stays NULL. */
MUST_CHECK enum err gates_name_texts(struct gates_texts *t,
                                     const struct config_list *files,
                                     struct errmsg *m);
void gates_texts_fini(struct gates_texts *t);

enum { GATES_INITS_MAX = 8 }; /* files of --init */

/* What the metadata of gates say about how they were made. */
enum gates_says {
    GATES_STEPS,      /* that made them; of a mean, those of each file */
    GATES_MEMORY,     /* --memory */
    GATES_CONTEXT,    /* --tokens */
    GATES_MIX,        /* --mix */
    GATES_TEXTS,      /* "name sha256, ..." */
    GATES_INIT_STEPS, /* GATES_STEPS of what training began from */
    GATES_INIT_RUN,   /* settings and step of the checkpoints of --init */
    GATES_INIT_SHA256,
    GATES_SAYS
};

/* Its key in the metadata. */
const char *gates_says_key(enum gates_says what);

/* What the files of --init say, in their order. */
struct gates_origin {
    char *of[GATES_INITS_MAX][GATES_SAYS]; /* owned; NULL: it says nothing */
    size_t n;
    bool knows_texts; /* a file learned from the texts that were given */
};

/* Takes in one more file, of gates or a checkpoint; at most GATES_INITS_MAX.
 * A run may know its texts by one hash over all: where that is the hash of
 * texts, they are its list. */
MUST_CHECK enum err gates_origin_add(struct gates_origin *o,
                                     const struct safetensors *f,
                                     const char sha256[HASH_HEX],
                                     const struct gates_texts *texts,
                                     struct errmsg *m);
/* Appends what all say together: once where they agree, else each, with " + "
 * between and "?" for a file that says nothing; of texts every one once.
 * Nothing where no file says anything. */
MUST_CHECK enum err gates_origin_join(struct buf *out,
                                      const struct gates_origin *o,
                                      enum gates_says what, struct errmsg *m);
void gates_origin_fini(struct gates_origin *o);

struct gates_init_input {
    const struct config_list *files; /* 1 to GATES_INITS_MAX */
    uint32_t width;                  /* that they must have; 0: any */
    const struct gates_texts *texts; /* see gates_origin_add() */
};

/* The mean of the gates of several files, and what these say, into a zeroed
 * *o. On OK the caller owns *out; ends *o, after an error too. */
MUST_CHECK enum err gates_read_init(struct gate **out, struct gates_origin *o,
                                    const struct gates_model *model,
                                    const struct gates_init_input *in,
                                    struct errmsg *m);

/* A lock file while the run lasts. */
struct gates_held {
    int fd; /* -1: not taken */
    char lock[PATH_MAX];
};

/* What a run of `ebb gates train` writes. */
struct gates_files {
    const char *out, *log; /* as given, borrowed; log NULL: none */
    bool learns;           /* else it writes neither checkpoint nor log */
    char checkpoint[PATH_MAX];
    struct gates_held held_out, held_checkpoint;
};

/* And reads. Borrowed. */
struct gates_inputs {
    const char *model;
    const struct config_list *text, *init;
};

/* Fills in f->checkpoint: what is given, or beside `out` where that is NULL.
 * ERR_INVAL: two of the files written are one, or one of them is read too, by
 * whatever names (`out` may be one of init); or it is none that could be
 * written. The sentence names the options and the files. Writes nothing. */
MUST_CHECK enum err gates_files_check(struct gates_files *f,
                                      const char *checkpoint,
                                      const struct gates_inputs *in,
                                      struct errmsg *m);
/* Takes the locks of a checked *f, and makes sure that the files can be
 * replaced. ERR_BUSY: another run writes to one. The caller ends what was
 * taken with gates_files_release(), after an error too. */
MUST_CHECK enum err gates_files_hold(struct gates_files *f, struct errmsg *m);
void gates_files_release(struct gates_files *f);

/* n windows of n_tokens each, one behind the other. */
struct gates_windows {
    const int32_t *tokens;
    uint32_t n_tokens, n;
};

/* beta[n_layers][windows][n_kv_heads][n_tokens] that the gates give each token
 * of each window, which the model reads from its start. The gates fit. */
MUST_CHECK enum err gates_read_beta(const struct gates_model *g,
                                    const struct gate *gate,
                                    const struct gates_windows *w, float *beta,
                                    struct errmsg *m);

int gates_train(int argc, char *const *argv, const atomic_bool *stop);
int gates_show(int argc, char *const *argv);

extern const struct flags gates_train_flags, gates_show_flags;

/* Prints "ebb gates: <sentence>" on stderr and returns the status. */
int gates_fail(int status, const struct errmsg *m);

#endif
