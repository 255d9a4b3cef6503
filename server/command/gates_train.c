#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/host.h"
#include "base/json.h"
#include "gates/gate_file.h"
#include "gates/train/checkpoint.h"
#include "gates/train/run.h"
#include "server/command/gates_internal.h"

enum {
    STEPS = 2000,
    PROGRESS_SECONDS = 10,
    /* Width of the gates: 512 as in the paper, but an eighth of the weights
     * of a small model would be too many (docs/design, algorithms 1.4). */
    WIDTH_SMALL = 128,
    WIDTH_LARGE = 512,
    IDENTITY_BYTES = 1024,
    TEXTS_META_BYTES = 1 << 16
};
static const uint64_t SMALL_MODEL = 1000000000; /* parameters */

struct train_flags {
    char *model, *out, *init, *checkpoint, *log, *mix;
    struct config_list text;
    int64_t steps, tokens, width, warm_up, seed, threads;
    int64_t checkpoint_every; /* ms */
    uint64_t keep_memory;
    double memory, lr, weight, ntp_weight, answer_weight, loss_positions;
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
             "or the flag again."},
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
     .type = OPT_STRING,
     .field = FIELD(init),
     .word = "FILE",
     .help = "Gates to start from instead of random ones, or the checkpoint "
             "of a run that has not ended. The optimiser starts afresh."},
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
     .dflt = "1",
     .max = 1000000,
     .word = "U",
     .help = "Weight of the next-token loss beside the divergence from the "
             "model that forgets nothing. Below 1 the gates imitate that "
             "model more closely."},
    {.name = "answer_weight",
     .type = OPT_REAL,
     .field = FIELD(answer_weight),
     .dflt = "0",
     .max = 1000000,
     .word = "A",
     .help = "Weight of the next-token loss over the answers of recall "
             "documents alone."},
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
     .dflt = "plain=40,chat=20,recall=25,copy=15,list=0",
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
    struct mix *mix;
    struct gate *gate;
    uint32_t share[MIX_KINDS];
    char checkpoint[PATH_MAX];
    char texts[HASH_HEX];          /* of all of them, in order */
    char init[HASH_HEX];           /* of the file of --init, or "" */
    char init_run[IDENTITY_BYTES]; /* the run whose checkpoint that is, or "" */
    char identity[IDENTITY_BYTES];
    struct buf text_list; /* for the metadata: "name sha256" each */
};

static enum err read_share(uint32_t share[MIX_KINDS], const char *word,
                           size_t n, struct errmsg *m)
{
    const char *names[MIX_KINDS];
    char name[OPTION_NAME_MAX + 1];
    size_t len = strcspn(word, "=");
    for (int i = 0; i < MIX_KINDS; i++) {
        names[i] = mix_kind_name((enum mix_kind)i);
        if (len >= n || strlen(names[i]) != len ||
            strncmp(names[i], word, len) != 0)
            continue;
        char *end;
        unsigned long v = strtoul(word + len + 1, &end, 10);
        if (end != word + n || end == word + len + 1 || v > 1000000 ||
            word[len + 1] < '0' || word[len + 1] > '9')
            break;
        share[i] = (uint32_t)v;
        return OK;
    }
    if (len < n)
        n = len;
    snprintf(name, sizeof(name), "%.*s",
             n < sizeof(name) ? (int)n : OPTION_NAME_MAX, word);
    return err_set(m, ERR_INVAL,
                   "--mix: '%.60s' must begin with a kind and its share, from "
                   "0 to 1000000; the nearest is '%s=10'",
                   word, flags_nearest(name, names, MIX_KINDS));
}

/* "plain=40,chat=20": kinds that are not named have no share. */
static enum err read_mix(uint32_t share[MIX_KINDS], const char *text,
                         struct errmsg *m)
{
    uint64_t sum = 0;
    enum err rc = OK;
    memset(share, 0, MIX_KINDS * sizeof(*share));
    while (rc == OK && *text != '\0') {
        size_t n = strcspn(text, ",");
        rc = read_share(share, text, n, m);
        text += n + (text[n] == ',');
    }
    for (int i = 0; i < MIX_KINDS; i++)
        sum += share[i];
    if (rc == OK && sum == 0)
        rc = err_set(m, ERR_INVAL, "--mix: all shares are zero");
    return rc;
}

static enum err check_needed(const struct train_flags *o, struct errmsg *m)
{
    bool is_copy = o->steps == 0;
    const char *missing = o->model == NULL             ? "--model FILE"
                          : o->text.n == 0 && !is_copy ? "--text FILE..."
                          : o->out == NULL             ? "--out FILE"
                          : is_copy && o->init == NULL ? "--init FILE"
                                                       : NULL;
    if (missing != NULL)
        return err_set(m, ERR_INVAL, "%s is needed", missing);
    if (o->f16 && o->f32)
        return err_set(m, ERR_INVAL, "--f16 and --f32 exclude each other");
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

/* The folder must be writable now, not after hours. */
static enum err check_out(struct training *t, struct errmsg *m)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(t->o.out, '/');
    int n = slash == NULL ? 1 : slash == t->o.out ? 1 : (int)(slash - t->o.out);
    snprintf(folder, sizeof(folder), "%.*s", n, slash == NULL ? "." : t->o.out);
    if (access(folder, W_OK) != 0)
        return err_set(m, ERR_INVAL,
                       "--out: the folder of %s cannot be written", t->o.out);
    n = t->o.checkpoint != NULL
            ? snprintf(t->checkpoint, PATH_MAX, "%s", t->o.checkpoint)
            : snprintf(t->checkpoint, PATH_MAX, "%s.checkpoint", t->o.out);
    return n < PATH_MAX ? OK
                        : err_set(m, ERR_INVAL,
                                  "--checkpoint: the path is too "
                                  "long");
}

/* One turn as an object of OpenAI's format. */
static bool add_turn(cJSON *messages, const struct mix_turn *turn)
{
    char *text = strndup(turn->text, turn->n);
    cJSON *message = cJSON_CreateObject();
    bool ok = text != NULL && message != NULL &&
              cJSON_AddStringToObject(message, "role",
                                      turn->is_user ? "user" : "assistant") &&
              cJSON_AddStringToObject(message, "content", text) &&
              cJSON_AddItemToArray(messages, message);
    if (!ok)
        cJSON_Delete(message);
    free(text);
    return ok;
}

static enum err write_chat(void *ctx, const struct mix_turn *turns,
                           size_t n_turns, struct tokens *out, struct errmsg *m)
{
    cJSON *messages = cJSON_CreateArray();
    bool ok = messages != NULL;
    for (size_t i = 0; i < n_turns && ok; i++)
        ok = add_turn(messages, &turns[i]);
    struct prompt_chat chat = {.messages = messages};
    enum err rc = ok ? prompt_from_chat(ctx, &chat, out, m)
                     : err_set(m, ERR_NOMEM, "no memory for a chat");
    cJSON_Delete(messages);
    return rc;
}

/* Whether the model's template takes a conversation; where it does not, chats
 * are written in plain words. */
static bool can_write_chats(struct training *t)
{
    static const struct mix_turn turns[] = {{true, "Yes?", 4},
                                            {false, "Yes.", 4}};
    struct tokens tokens = {0};
    struct errmsg why = {""};
    bool ok = t->model.file.prompt != NULL &&
              write_chat(t->model.file.prompt, turns, 2, &tokens, &why) == OK;
    tokens_fini(&tokens);
    if (!ok && t->share[MIX_CHAT] > 0)
        fprintf(stderr, "ebb gates: chats are written without a template: %s\n",
                why.text[0] != '\0' ? why.text : "the model has none");
    return ok;
}

/* Takes one file in; its name without folders and its hash go into the list. */
static enum err add_text(struct training *t, const char *path, struct hash *all,
                         struct errmsg *m)
{
    struct buf text = {0};
    struct errmsg why = {""};
    uint8_t digest[HASH_BYTES];
    char hex[HASH_HEX];
    enum err rc = file_read_all(&text, path, MIX_TEXT_MAX, m);
    if (rc != OK)
        return rc;
    rc = mix_add_text(t->mix, text.data == NULL ? "" : text.data, text.len,
                      &why);
    if (rc != OK)
        err_set(m, rc, "%s: %s", path, why.text);
    if (rc == OK) {
        rc = hash_sha256(digest, text.data, text.len);
        if (rc == OK)
            rc = hash_update(all, digest, sizeof(digest));
        hash_hex(hex, digest, sizeof(digest));
        const char *slash = strrchr(path, '/');
        if (rc == OK)
            rc = buf_printf(&t->text_list, "%s%s %s",
                            t->text_list.len > 0 ? ", " : "",
                            slash == NULL ? path : slash + 1, hex);
        if (rc != OK)
            err_set(m, rc, "no memory for %s", path);
    }
    buf_fini(&text);
    return rc;
}

static enum err read_texts(struct training *t, struct errmsg *m)
{
    struct hash all = {0};
    uint8_t digest[HASH_BYTES];
    struct mix_options o = {.tokenizer = t->model.file.tokenizer,
                            .chat = can_write_chats(t) ? write_chat : NULL,
                            .chat_ctx = t->model.file.prompt,
                            .seed = (uint64_t)t->o.seed};
    memcpy(o.share, t->share, sizeof(o.share));
    t->text_list.max = TEXTS_META_BYTES;
    enum err rc = mix_new(&t->mix, &o, m);
    if (rc == OK)
        rc = hash_init(&all);
    for (size_t i = 0; i < t->o.text.n && rc == OK; i++)
        rc = add_text(t, t->o.text.item[i], &all, m);
    if (rc == OK)
        rc = hash_final(&all, digest);
    if (rc == OK)
        hash_hex(t->texts, digest, sizeof(digest));
    hash_fini(&all);
    return rc;
}

/* The gates of --init, which must be of this model and of the kind that we
 * train. */
static enum err load_init(struct training *t, struct errmsg *m)
{
    struct gate_shape shape = gates_model_shape(&t->model);
    struct safetensors *f = NULL;
    struct errmsg why = {""};
    enum err rc = safetensors_open(&f, t->o.init, m);
    if (rc != OK)
        return rc;
    rc = gate_check_base(f, t->model.fingerprint, &why);
    if (rc == OK && checkpoint_is(f)) {
        checkpoint_describe(t->init_run, sizeof(t->init_run), f);
        rc = checkpoint_gates(&t->gate, f, &shape, &why);
    } else if (rc == OK) {
        rc = gate_read(&t->gate, f, &shape, &why);
    }
    if (rc == OK && t->gate->shape.kind != GATE_RG10)
        rc = err_set(&why, ERR_UNSUPPORTED,
                     "its gates are of type %s; rg10 can be trained",
                     gate_kind_name(t->gate->shape.kind));
    if (rc == OK && t->o.width != 0 &&
        (uint32_t)t->o.width != t->gate->shape.width)
        rc = err_set(&why, ERR_CONFLICT,
                     "its gates are %u wide, --width says %" PRId64,
                     t->gate->shape.width, t->o.width);
    safetensors_close(f);
    return rc == OK ? OK : err_set(m, rc, "%s: %s", t->o.init, why.text);
}

static enum err make_gate(struct training *t, struct errmsg *m)
{
    if (t->o.init != NULL) {
        enum err rc = load_init(t, m);
        return rc == OK ? hash_file(t->init, t->o.init, m) : rc;
    }
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

static void put_shares(char *out, size_t size, const struct training *t)
{
    size_t n = 0;
    for (int i = 0; i < MIX_KINDS; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%s=%u", i > 0 ? "," : "",
                              mix_kind_name((enum mix_kind)i), t->share[i]);
}

enum { SHARES_BYTES = 128 };

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
    char width[16], memory[32], context[24], steps[24], shares[SHARES_BYTES];
    const struct model_info *i = &t->model.info;
    struct meta meta = {.n = 0};
    put_shares(shares, sizeof(shares), t);
    snprintf(width, sizeof(width), "%u", t->gate->shape.width);
    snprintf(memory, sizeof(memory), "%g", t->o.memory);
    snprintf(context, sizeof(context), "%" PRId64, t->o.tokens);
    snprintf(steps, sizeof(steps), "%" PRId64, t->o.steps);
    add_meta(&meta, "format", "pt");
    add_meta(&meta, "gate", gate_kind_name(t->gate->shape.kind));
    add_meta(&meta, "base_model", i->name[0] != '\0' ? i->name : i->arch);
    add_meta(&meta, "base_fingerprint", t->model.fingerprint);
    add_meta(&meta, "base_file_sha256", t->model.sha256);
    add_meta(&meta, "m", width);
    add_meta(&meta, "train_steps", steps);
    if (t->o.steps > 0) {
        add_meta(&meta, "train_memory", memory);
        add_meta(&meta, "train_context", context);
        add_meta(&meta, "train_mix", shares);
        add_meta(&meta, "train_texts", t->text_list.data);
    }
    add_meta(&meta, "train_init_sha256", t->init);
    add_meta(&meta, "train_init_run", t->init_run);
    return gate_save(t->gate, t->o.out, !t->o.f32, meta.item, meta.n, m);
}

static enum err run(struct training *t, const atomic_bool *stop,
                    struct errmsg *m)
{
    char shares[SHARES_BYTES];
    put_shares(shares, sizeof(shares), t);
    snprintf(t->identity, sizeof(t->identity),
             "model=%s texts=%s mix=%s init=%s", t->model.sha256, t->texts,
             shares, t->init[0] != '\0' ? t->init : "none");
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
        .positions = t->o.loss_positions,
        .lr = (float)t->o.lr,
        .keep_bytes = t->o.keep_memory,
        .seed = (uint64_t)t->o.seed,
        .identity = t->identity,
        .checkpoint = t->checkpoint,
        .checkpoint_every = (uint32_t)(t->o.checkpoint_every / 1000),
        .log = t->o.log,
        .progress_every = PROGRESS_SECONDS,
        .stop = stop,
    };
    return train_run(t->gate, t->model.frozen, t->mix, &o, t->model.mat, m);
}

static enum err learn(struct training *t, const atomic_bool *stop,
                      struct errmsg *m)
{
    enum err rc = read_texts(t, m);
    if (rc == OK)
        rc = gates_model_load(&t->model, m);
    return rc == OK ? run(t, stop, m) : rc;
}

static enum err train(struct training *t, const atomic_bool *stop,
                      struct errmsg *m)
{
    enum err rc = gates_model_open(&t->model, t->o.model, t->o.threads, m);
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
                why.text, t->checkpoint);
    }
    if (rc == OK)
        rc = write_gates(t, m);
    return rc;
}

static void training_fini(struct training *t)
{
    gate_free(t->gate);
    mix_free(t->mix);
    gates_model_close(&t->model);
    buf_fini(&t->text_list);
    flags_fini(&t->o, &gates_train_flags);
}

int gates_train(int argc, char *const *argv, const atomic_bool *stop)
{
    struct training t = {.o.warm_up = -1};
    struct errmsg m = {""};
    bool help = false;
    if (flags_parse(&t.o, &help, &gates_train_flags, argc, argv, &m) != OK)
        return gates_fail(GATES_USAGE, &m);
    enum err rc = check_needed(&t.o, &m);
    if (rc == OK)
        rc = read_mix(t.share, t.o.mix, &m);
    if (rc == OK)
        rc = check_out(&t, &m);
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
