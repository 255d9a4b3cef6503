#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gates/gate_file.h"
#include "gates/train/run.h"
#include "server/command/gates_internal.h"

enum {
    STEPS = 2000,
    PROGRESS_SECONDS = 10,
    /* Width of the gates: 512 as in the paper, but an eighth of the weights
     * of a small model would be too many (docs/design, algorithms 1.4). */
    WIDTH_SMALL = 128,
    WIDTH_LARGE = 512,
    IDENTITY_BYTES = 2048
};
static const uint64_t SMALL_MODEL = 1000000000; /* parameters */

struct train_flags {
    char *model, *out, *checkpoint, *log, *mix;
    struct config_list text, init;
    int64_t steps, tokens, width, warm_up, seed, threads;
    int64_t checkpoint_every; /* ms */
    uint64_t keep_memory;
    double memory, lr, weight, ntp_weight, answer_weight, answer_divergence,
        loss_positions;
    bool f16, f32;
};

#define FIELD(f) offsetof(struct train_flags, f)

static const struct option train_options[] = {
    {.name = "model",
     .type = OPT_STRING,
     .field = FIELD(model),
     .word = "FILE",
     .help = "The model whose gates are trained, a GGUF file. Needed."},
    {.name = "text",
     .type = OPT_WORDS,
     .field = FIELD(text),
     .word = "FILE...",
     .help = "The texts to learn from, UTF-8. Needed; several after one flag, "
             "or the flag again. With --steps 0 only to name those that a "
             "checkpoint knows by one hash."},
    {.name = "out",
     .type = OPT_STRING,
     .field = FIELD(out),
     .word = "FILE",
     .help = "Where the gates go, a .safetensors file. Needed."},
    {.name = "steps",
     .type = OPT_INT,
     .field = FIELD(steps),
     .dflt = "2000",
     .max = 100000000,
     .word = "N",
     .help = "Sequences to learn from; the learning rate falls over all of "
             "them. 0 writes the gates of --init as they are."},
    {.name = "tokens",
     .type = OPT_INT,
     .field = FIELD(tokens),
     .dflt = "512",
     .min = MIX_TOKENS_MIN,
     .max = 1 << 17,
     .word = "N",
     .help = "Tokens of a sequence. Memory and time of a step grow with it, "
             "the attention with its square."},
    {.name = "memory",
     .type = OPT_REAL,
     .field = FIELD(memory),
     .dflt = "64",
     .min = 1,
     .max = 1 << 17,
     .word = "M",
     .help = "Entries per layer and head that the gates learn to live with. "
             "An eighth of --tokens is a good choice."},
    {.name = "width",
     .type = OPT_INT,
     .field = FIELD(width),
     .dflt = "0",
     .max = GATE_WIDTH_MAX,
     .word = "N",
     .shown_dflt = "128 for models below a billion parameters, else 512",
     .help = "Width of the gates' hidden layers."},
    {.name = "lr",
     .type = OPT_REAL,
     .field = FIELD(lr),
     .dflt = "0.003",
     .max = 1,
     .word = "X",
     .help = "The highest learning rate."},
    {.name = "warm_up",
     .type = OPT_INT,
     .field = FIELD(warm_up),
     .max = 100000000,
     .word = "N",
     .shown_dflt = "3% of the steps",
     .help = "Steps in which the learning rate rises."},
    {.name = "seed",
     .type = OPT_INT,
     .field = FIELD(seed),
     .dflt = "1",
     .max = INT64_MAX,
     .word = "N",
     .help = "Of the first gates and of the sequences."},
    {.name = "init",
     .type = OPT_WORDS,
     .field = FIELD(init),
     .word = "FILE...",
     .help = "Gates to start from instead of random ones, or the checkpoint "
             "of a run that has not ended. The optimiser starts afresh. Of "
             "several files, at most eight, it is their mean."},
    {.name = "weight",
     .type = OPT_REAL,
     .field = FIELD(weight),
     .dflt = "1",
     .max = 1000000,
     .word = "W",
     .help = "Weight of the capacity term."},
    {.name = "ntp-weight",
     .type = OPT_REAL,
     .field = FIELD(ntp_weight),
     .dflt = "0",
     .max = 1000000,
     .word = "U",
     .help = "Weight of the next-token loss beside the divergence from the "
             "model that forgets nothing. At 0 the gates imitate that model."},
    {.name = "answer_weight",
     .type = OPT_REAL,
     .field = FIELD(answer_weight),
     .dflt = "0.2",
     .max = 1000000,
     .word = "A",
     .help = "Weight of the next-token loss over the answers of recall "
             "documents alone."},
    {.name = "answer_divergence",
     .type = OPT_REAL,
     .field = FIELD(answer_divergence),
     .dflt = "0",
     .max = 1000000,
     .word = "V",
     .help = "Weight of the divergence over those answers alone, beside its "
             "share of the whole."},
    {.name = "loss_positions",
     .type = OPT_REAL,
     .field = FIELD(loss_positions),
     .dflt = "1",
     .max = 1,
     .word = "X",
     .help = "Share of the positions that the loss looks at, drawn at random; "
             "those of answers always. Below 1 a step is faster and its "
             "gradient noisier, with the same mean."},
    {.name = "mix",
     .type = OPT_STRING,
     .field = FIELD(mix),
     .dflt = "plain=20,chat=20,recall=40,copy=15,list=5",
     .word = "SHARES",
     .help = "Kinds of sequences and their shares: plain text; text as a chat; "
             "facts that are asked for at the end; text with repeated spans; "
             "lists of examples."},
    MODEL_FILE_THREADS(FIELD(threads)),
    {.name = "keep_memory",
     .type = OPT_BYTES,
     .field = FIELD(keep_memory),
     .dflt = "25%",
     .max = 1ull << 50,
     .word = "SIZE",
     .help = "Memory for what the backward pass would have to compute again: "
             "the more, the faster, with the same result."},
    {.name = "checkpoint",
     .type = OPT_STRING,
     .field = FIELD(checkpoint),
     .word = "FILE",
     .shown_dflt = "OUT.checkpoint",
     .help = "Where the state of the run is kept. When the file is there, the "
             "run continues from it."},
    {.name = "checkpoint_every",
     .type = OPT_TIME,
     .field = FIELD(checkpoint_every),
     .dflt = "3m",
     .max = 1000ull * 3600 * 24,
     .word = "TIME",
     .help = "Time between two checkpoints; 0s writes one after every step."},
    {.name = "log",
     .type = OPT_STRING,
     .field = FIELD(log),
     .word = "FILE",
     .help = "Appends one line of JSON for every step."},
    {.name = "f16",
     .type = OPT_BOOL,
     .field = FIELD(f16),
     .help = "Write 16-bit numbers; this is the default."},
    {.name = "f32",
     .type = OPT_BOOL,
     .field = FIELD(f32),
     .help = "Write 32-bit numbers."},
};

const struct flags gates_train_flags = {
    .usage = "ebb gates train --model FILE --text FILE... --out FILE [options]",
    .about =
        "Trains retention gates for a model, which stays as it is. SIGINT and "
        "SIGTERM write a checkpoint and end the run; the same command goes on "
        "from there, also after a crash, to the same gates.",
    .option = train_options,
    .n = sizeof(train_options) / sizeof(train_options[0]),
};

struct training {
    struct train_flags o;
    struct gates_model model;
    struct gates_texts texts;
    struct gate *gate;
    uint32_t share[MIX_KINDS];
    struct gates_files files;
    struct buf init[GATES_SAYS]; /* what the files of --init say together */
    char identity[IDENTITY_BYTES];
};

static enum err check_needed(const struct train_flags *o, struct errmsg *m)
{
    bool is_copy = o->steps == 0;
    const char *missing = o->model == NULL             ? "--model FILE"
                          : o->text.n == 0 && !is_copy ? "--text FILE..."
                          : o->out == NULL             ? "--out FILE"
                          : is_copy && o->init.n == 0  ? "--init FILE"
                                                       : NULL;
    if (missing != NULL)
        return err_set(m, ERR_INVAL, "%s is needed", missing);
    if (o->f16 && o->f32)
        return err_set(m, ERR_INVAL, "--f16 and --f32 exclude each other");
    if (o->init.n > GATES_INITS_MAX)
        return err_set(m, ERR_INVAL, "--init: %zu files are more than %d",
                       o->init.n, GATES_INITS_MAX);
    if (o->lr <= 0.0)
        return err_set(m, ERR_INVAL, "--lr: it must be more than 0");
    if (o->loss_positions <= 0.0)
        return err_set(m, ERR_INVAL,
                       "--loss-positions: it must be more than 0");
    if (o->warm_up > o->steps)
        return err_set(m, ERR_INVAL,
                       "--warm-up: %" PRId64 " is more than the %" PRId64
                       " steps there are",
                       o->warm_up, o->steps);
    return OK;
}

static enum err check_files(struct training *t, struct errmsg *m)
{
    const struct gates_inputs in = {
        .model = t->o.model, .text = &t->o.text, .init = &t->o.init};
    t->files.out = t->o.out;
    t->files.log = t->o.log;
    t->files.learns = t->o.steps > 0;
    return gates_files_check(&t->files, t->o.checkpoint, &in, m);
}

/* The gates of --init, and what its files say. */
static enum err load_init(struct training *t, struct errmsg *m)
{
    struct gates_origin o = {.n = 0};
    const struct gates_init_input in = {
        .files = &t->o.init, .width = (uint32_t)t->o.width, .texts = &t->texts};
    enum err rc = gates_read_init(&t->gate, &o, &t->model, &in, m);
    if (rc == OK && t->o.steps == 0 && t->o.text.n > 0 && !o.knows_texts)
        rc = err_set(m, ERR_CONFLICT,
                     "--text: no file of --init learned from exactly these, "
                     "in this order; with --steps 0 none is needed");
    for (int i = 0; rc == OK && i < GATES_SAYS; i++)
        rc = gates_origin_join(&t->init[i], &o, (enum gates_says)i, m);
    gates_origin_fini(&o);
    return rc;
}

static enum err make_gate(struct training *t, struct errmsg *m)
{
    if (t->o.init.n > 0)
        return load_init(t, m);
    struct gate_shape shape = gates_model_shape(&t->model);
    bool is_small = t->model.info.n_params < SMALL_MODEL;
    shape.width = t->o.width != 0 ? (uint32_t)t->o.width
                  : is_small      ? WIDTH_SMALL
                                  : WIDTH_LARGE;
    enum err rc = gate_new(&t->gate, &shape, m);
    if (rc == OK)
        train_init_gate(t->gate, t->o.memory, (uint64_t)t->o.seed);
    return rc;
}

enum { META_MAX = 16 };

struct meta {
    struct safetensors_string item[META_MAX];
    size_t n;
};

/* value is borrowed; an empty one is left out. */
static void add_meta(struct meta *to, const char *key, const char *value)
{
    if (value != NULL && value[0] != '\0')
        to->item[to->n++] = (struct safetensors_string){key, value};
}

static enum err write_gates(const struct training *t, struct errmsg *m)
{
    char width[16], memory[32], context[24], steps[24];
    char shares[GATES_MIX_BYTES];
    const char *says[GATES_SAYS];
    const struct model_info *i = &t->model.info;
    struct meta meta = {.n = 0};
    snprintf(width, sizeof(width), "%u", t->gate->shape.width);
    for (int k = 0; k < GATES_SAYS; k++)
        says[k] = t->init[k].data;
    if (t->o.steps > 0) {
        gates_put_mix(shares, t->share);
        snprintf(memory, sizeof(memory), "%g", t->o.memory);
        snprintf(context, sizeof(context), "%" PRId64, t->o.tokens);
        snprintf(steps, sizeof(steps), "%" PRId64, t->o.steps);
        says[GATES_INIT_STEPS] = says[GATES_STEPS];
        says[GATES_STEPS] = steps;
        says[GATES_MEMORY] = memory;
        says[GATES_CONTEXT] = context;
        says[GATES_MIX] = shares;
        says[GATES_TEXTS] = t->texts.list.data;
    }
    add_meta(&meta, "format", "pt");
    add_meta(&meta, "gate", gate_kind_name(t->gate->shape.kind));
    add_meta(&meta, "base_model", i->name[0] != '\0' ? i->name : i->arch);
    add_meta(&meta, "base_fingerprint", t->model.fingerprint);
    add_meta(&meta, "base_file_sha256", t->model.sha256);
    add_meta(&meta, "m", width);
    for (int k = 0; k < GATES_SAYS; k++)
        add_meta(&meta, gates_says_key((enum gates_says)k), says[k]);
    return gate_save(t->gate, t->o.out, !t->o.f32, meta.item, meta.n, m);
}

static enum err run(struct training *t, const atomic_bool *stop,
                    struct errmsg *m)
{
    char shares[GATES_MIX_BYTES];
    const char *init = t->init[GATES_INIT_SHA256].data;
    gates_put_mix(shares, t->share);
    snprintf(t->identity, sizeof(t->identity),
             "model=%s texts=%s mix=%s init=%s", t->model.sha256,
             t->texts.sha256, shares, init != NULL ? init : "none");
    int64_t warm_up = t->o.warm_up;
    if (warm_up < 0)
        warm_up = (t->o.steps * 3 + 99) / 100;
    struct train_options o = {
        .steps = (uint64_t)t->o.steps,
        .warm_up = (uint64_t)warm_up,
        .tokens = (uint32_t)t->o.tokens,
        .memory = t->o.memory,
        .weight = t->o.weight,
        .ntp_weight = t->o.ntp_weight,
        .answer_weight = t->o.answer_weight,
        .answer_divergence = t->o.answer_divergence,
        .positions = t->o.loss_positions,
        .lr = (float)t->o.lr,
        .keep_bytes = t->o.keep_memory,
        .seed = (uint64_t)t->o.seed,
        .identity = t->identity,
        .texts = t->texts.list.data,
        .init_steps = t->init[GATES_STEPS].data,
        .checkpoint = t->files.checkpoint,
        .checkpoint_every = (uint32_t)(t->o.checkpoint_every / 1000),
        .log = t->o.log,
        .progress_every = PROGRESS_SECONDS,
        .stop = stop,
    };
    return train_run(t->gate, t->model.frozen, t->texts.mix, &o, t->model.mat,
                     m);
}

static enum err learn(struct training *t, const atomic_bool *stop,
                      struct errmsg *m)
{
    const struct gates_texts_input in = {
        .files = &t->o.text, .share = t->share, .seed = (uint64_t)t->o.seed};
    enum err rc = gates_read_texts(&t->texts, &t->model.file, &in, m);
    if (rc == OK)
        rc = gates_model_load(&t->model, m);
    return rc == OK ? run(t, stop, m) : rc;
}

static enum err train(struct training *t, const atomic_bool *stop,
                      struct errmsg *m)
{
    enum err rc = gates_files_hold(&t->files, m);
    if (rc == OK)
        rc = gates_model_open(&t->model, t->o.model, t->o.threads, m);
    if (rc == OK && t->o.steps == 0)
        rc = gates_name_texts(&t->texts, &t->o.text, m);
    if (rc == OK)
        rc = make_gate(t, m);
    if (rc == OK)
        rc = hash_file(t->model.sha256, t->o.model, m);
    if (rc == OK && t->o.steps > 0)
        rc = learn(t, stop, m);
    if (rc == ERR_CANCELLED) {
        struct errmsg why = *m;
        err_set(m, rc,
                "%s; the state is in %s, and the same command goes on "
                "from there",
                why.text, t->files.checkpoint);
    }
    if (rc == OK)
        rc = write_gates(t, m);
    return rc;
}

static void training_fini(struct training *t)
{
    gates_files_release(&t->files);
    for (int i = 0; i < GATES_SAYS; i++)
        buf_fini(&t->init[i]);
    gate_free(t->gate);
    gates_texts_fini(&t->texts);
    gates_model_close(&t->model);
    flags_fini(&t->o, &gates_train_flags);
}

int gates_train(int argc, char *const *argv, const atomic_bool *stop)
{
    struct training t = {
        .o.warm_up = -1,
        .files = {.held_out.fd = -1, .held_checkpoint.fd = -1}};
    struct errmsg m = {""};
    bool help = false;
    if (flags_parse(&t.o, &help, &gates_train_flags, argc, argv, &m) != OK)
        return gates_fail(GATES_USAGE, &m);
    enum err rc = check_needed(&t.o, &m);
    if (rc == OK)
        rc = gates_read_mix(t.share, t.o.mix, &m);
    if (rc == OK)
        rc = check_files(&t, &m);
    if (rc != OK) {
        training_fini(&t);
        return gates_fail(GATES_USAGE, &m);
    }
    rc = train(&t, stop, &m);
    if (rc == OK)
        printf("wrote %s\n", t.o.out);
    training_fini(&t);
    return rc == OK ? GATES_DONE : gates_fail(GATES_FAILED, &m);
}
