#include "bench/speed.h"

#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"
#include "base/workers.h"
#include "runtime/model/model.h"

enum {
    LIST_MAX = 16,
    CHUNK = 256, /* rows of one step: what the server uses */
    BATCH_MAX = 256,
    LENGTH_MAX = 1 << 17,
    EXIT_BAD_USAGE = 2,
    ROUNDS_MAX = 100,
    DECODE_STEPS = 16
};

struct list {
    uint32_t n, value[LIST_MAX];
};

struct settings {
    const char *model, *kernels, *json, *gates;
    int n_threads;
    enum kv_type kv_type;
    struct list prompts, batches, depths;
    uint32_t rounds;
    bool wants_help;
};

struct bench {
    struct settings set;
    const struct ops *ops;
    struct gguf *gguf;
    struct workers *workers;
    struct model *model;
    struct gate *gate; /* NULL without --gates */
    struct pool *pool;
    float *logits;
    double load_s;
    cJSON *rows; /* borrowed from the tree of results */
};

static const char usage[] =
    "ebb bench --model FILE [options]\n"
    "  --threads N       compute threads (default: the CPUs we may use)\n"
    "  --kernels NAME    auto, reference, avx2 or avx512 (default: auto)\n"
    "  --kv-type TYPE    f16, q8_0 or f32 (default: f16)\n"
    "  --prompts LIST    prompt lengths (default: 128,512,2048)\n"
    "  --batches LIST    sequences decoded together (default: 1,4,8)\n"
    "  --depths LIST     context before decoding (default: 128,2048)\n"
    "  --rounds N        samples a row; the best and the median are shown\n"
    "                    (default: 3)\n"
    "  --gates WHICH     also with retention gates, in turns with the samples\n"
    "                    without: auto, those that were made for the model; a\n"
    "                    file of them; or a width: numbers by chance cost\n"
    "                    what trained ones do\n"
    "  --json FILE       the same figures as JSON; - is stdout, without the\n"
    "                    table\n";

static bool parse_number(const char *s, uint32_t min, uint32_t max,
                         uint32_t *out)
{
    char *end = NULL;
    errno = 0;
    unsigned long v = strtoul(s, &end, 10);
    if (s[0] < '0' || s[0] > '9' || *end || errno || v < min || v > max)
        return false;
    *out = (uint32_t)v;
    return true;
}

static bool parse_list(const char *s, uint32_t min, uint32_t max,
                       struct list *out)
{
    char text[256];
    char *rest = NULL;
    out->n = 0;
    if (strlen(s) >= sizeof(text))
        return false;
    memcpy(text, s, strlen(s) + 1);
    for (char *word = strtok_r(text, ",", &rest); word;
         word = strtok_r(NULL, ",", &rest))
        if (out->n == LIST_MAX ||
            !parse_number(word, min, max, &out->value[out->n++]))
            return false;
    return out->n > 0;
}

static bool parse_kv_type(const char *s, enum kv_type *out)
{
    for (int t = KV_F16; t <= KV_F32; t++)
        if (strcmp(s, kv_type_name((enum kv_type)t)) == 0) {
            *out = (enum kv_type)t;
            return true;
        }
    return false;
}

static bool parse_option(struct settings *s, int option, const char *value)
{
    uint32_t n = 0;
    switch (option) {
    case 'm':
        s->model = value;
        return true;
    case 't':
        if (!parse_number(value, 1, WORKERS_MAX, &n))
            return false;
        s->n_threads = (int)n;
        return true;
    case 'k':
        s->kernels = value;
        return true;
    case 'v':
        return parse_kv_type(value, &s->kv_type);
    case 'p':
        return parse_list(value, 1, LENGTH_MAX, &s->prompts);
    case 'b':
        return parse_list(value, 1, BATCH_MAX, &s->batches);
    case 'd':
        return parse_list(value, 1, LENGTH_MAX, &s->depths);
    case 'r':
        return parse_number(value, 1, ROUNDS_MAX, &s->rounds);
    case 'j':
        s->json = value;
        return true;
    case 'g':
        s->gates = value;
        return true;
    default:
        return false;
    }
}

static bool parse(struct settings *s, int argc, char **argv)
{
    static const struct option options[] = {
        {"model", required_argument, NULL, 'm'},
        {"threads", required_argument, NULL, 't'},
        {"kernels", required_argument, NULL, 'k'},
        {"kv-type", required_argument, NULL, 'v'},
        {"prompts", required_argument, NULL, 'p'},
        {"batches", required_argument, NULL, 'b'},
        {"depths", required_argument, NULL, 'd'},
        {"rounds", required_argument, NULL, 'r'},
        {"json", required_argument, NULL, 'j'},
        {"gates", required_argument, NULL, 'g'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0}};
    int option = 0, index = 0;
    *s = (struct settings){.kernels = "auto",
                           .n_threads = workers_cpus(),
                           .prompts = {3, {128, 512, 2048}},
                           .batches = {3, {1, 4, 8}},
                           .depths = {2, {128, 2048}},
                           .rounds = 3};
    /* 0 and not 1: glibc starts afresh, whatever was parsed before. */
    optind = 0;
    while ((option = getopt_long(argc, argv, "h", options, &index)) != -1) {
        if (option == '?')
            return false;
        if (option == 'h') {
            s->wants_help = true;
            return true;
        }
        if (!parse_option(s, option, optarg)) {
            fprintf(stderr, "ebb bench: --%s \"%s\" is not possible\n",
                    options[index].name, optarg);
            return false;
        }
    }
    if (optind < argc)
        fprintf(stderr, "ebb bench: \"%s\" is no option\n", argv[optind]);
    else if (!s->model)
        fprintf(stderr, "ebb bench: --model is missing\n");
    return s->model && optind == argc;
}

static uint32_t largest(const struct list *l)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < l->n; i++)
        most = l->value[i] > most ? l->value[i] : most;
    return most;
}

static enum err make_gates(struct gate **out, const struct gate_shape *shape,
                           struct errmsg *m)
{
    struct rng r;
    enum err rc = gate_new(out, shape, m);
    rng_seed(&r, 1);
    for (size_t i = 0; rc == OK && i < gate_n_params(*out); i++)
        (*out)->p[i] = 0.1f * (rng_float(&r) - 0.5f);
    return rc;
}

/* As the server finds them; without any there is nothing to measure. */
static enum err find_gates(struct bench *b, struct errmsg *m)
{
    char path[GATE_PATH_MAX];
    enum err rc = model_look_for_gates(&b->gate, b->model, b->gguf,
                                       b->set.gates, path, m);
    if (rc == OK && b->gate == NULL && strcmp(b->set.gates, "none") != 0)
        rc = err_set(m, ERR_NOTFOUND,
                     "--gates auto: no file of gates/pretrained was made for "
                     "this model");
    return rc;
}

static enum err open_gates(struct bench *b, struct errmsg *m)
{
    const struct model_info *i = model_info(b->model);
    struct gate_shape shape = {.n_layers = i->n_layers,
                               .n_embd = i->n_embd,
                               .n_kv_heads = i->n_kv_heads};
    if (parse_number(b->set.gates, 1, GATE_WIDTH_MAX, &shape.width))
        return make_gates(&b->gate, &shape, m);
    return find_gates(b, m);
}

/* The pool holds the largest row of the table; memory is touched only as far
 * as a row needs it. */
static enum err open_bench(struct bench *b, struct errmsg *m)
{
    const struct settings *s = &b->set;
    uint32_t batch = largest(&s->batches);
    uint32_t depth = largest(&s->depths) + DECODE_STEPS;
    uint32_t prompt = largest(&s->prompts);
    int64_t t0 = clock_us();
    b->ops =
        strcmp(s->kernels, "auto") == 0 ? ops_best() : ops_find(s->kernels);
    if (!b->ops)
        return err_set(m, ERR_UNSUPPORTED,
                       "kernels \"%s\" do not exist or do not run here",
                       s->kernels);
    enum err rc = gguf_open(&b->gguf, s->model, m);
    if (rc == OK)
        rc = workers_new(&b->workers, s->n_threads, m);
    struct model_options o = {.ops = b->ops,
                              .workers = b->workers,
                              .max_rows = batch > CHUNK ? batch : CHUNK,
                              .max_runs = batch,
                              .max_context = depth > prompt ? depth : prompt};
    if (rc == OK)
        rc = model_load(&b->model, b->gguf, &o, m);
    b->load_s = (double)(clock_us() - t0) / 1e6;
    if (rc == OK && b->set.gates)
        rc = open_gates(b, m);
    if (rc != OK)
        return rc;
    const struct model_info *i = model_info(b->model);
    struct kv_layout l;
    kv_layout_init(&l, s->kv_type, i->head_dim);
    uint32_t n_lists = i->n_layers * i->n_kv_heads;
    uint64_t units = batch * table_units_for(n_lists, depth);
    uint64_t for_prompt = table_units_for(n_lists, prompt);
    units = units > for_prompt ? units : for_prompt;
    b->logits = malloc(sizeof(float) * batch * i->n_vocab);
    if (!b->logits)
        return err_set(m, ERR_NOMEM, "no memory for %u rows of logits", batch);
    return pool_new(&b->pool, &l, units * pool_unit_bytes(&l), m);
}

static void close_bench(struct bench *b)
{
    pool_free(b->pool);
    free(b->logits);
    gate_free(b->gate);
    model_free(b->model);
    workers_free(b->workers);
    gguf_close(b->gguf);
}

static struct table *new_table(const struct bench *b, uint32_t n_tokens)
{
    struct table *t = NULL;
    const struct model_info *i = model_info(b->model);
    if (table_new(&t, b->pool, i->n_layers, i->n_kv_heads, n_tokens) != OK)
        return NULL;
    return t;
}

/* The pool was sized for it. */
static bool grow(const struct bench *b, struct table *t, uint32_t n)
{
    uint64_t need = table_units_needed(t, n);
    int32_t pos = (int32_t)t->list[0].len;
    if (pool_reserve(b->pool, (uint32_t)need) != OK)
        return false;
    return table_append(t, n, pos, pos) == need;
}

/* Depth without computing: entries of zeros, written so that their memory is
 * really there. */
static bool fill(const struct bench *b, struct table *t, uint32_t n)
{
    if (!grow(b, t, n))
        return false;
    for (uint32_t i = 0; i < t->n_layers * t->n_kv_heads; i++)
        for (uint32_t u = 0; u < t->list[i].n_units; u++)
            memset(pool_data(b->pool, t->list[i].unit[u]), 0,
                   pool_layout(b->pool)->data_bytes);
    return true;
}

/* Some id of the vocabulary, different from row to row. */
static int32_t token(const struct bench *b, uint32_t i)
{
    return (int32_t)(i * 7919 % model_info(b->model)->n_vocab);
}

/* Seconds for a prompt of n tokens, with the logits of its last; -1 when out
 * of memory. */
static double time_prefill(const struct bench *b, uint32_t n)
{
    int32_t tokens[CHUNK];
    struct table *t = new_table(b, n);
    if (!t)
        return -1;
    int64_t t0 = clock_us();
    for (uint32_t at = 0; at < n; at += CHUNK) {
        uint32_t k = n - at < CHUNK ? n - at : CHUNK, last = k - 1;
        for (uint32_t i = 0; i < k; i++)
            tokens[i] = token(b, at + i);
        if (!grow(b, t, k))
            break;
        struct model_run run = {.table = t, .n_rows = k, .pos = at};
        struct model_batch step = {.n_rows = k,
                                   .tokens = tokens,
                                   .n_runs = 1,
                                   .runs = &run,
                                   .n_logits = at + k == n,
                                   .logit_rows = &last,
                                   .logits = b->logits};
        model_step(b->model, &step);
    }
    double s = (double)(clock_us() - t0) / 1e6;
    bool whole = t->list[0].len == n;
    table_free(t);
    return whole ? s : -1;
}

/* As the engine decodes: gates may wait, and are done by the end. */
static double time_steps(const struct bench *b, struct table **t,
                         uint32_t batch)
{
    int32_t tokens[BATCH_MAX];
    uint32_t rows[BATCH_MAX];
    struct model_run runs[BATCH_MAX];
    int64_t t0 = clock_us();
    for (uint32_t step = 0; step < DECODE_STEPS; step++) {
        for (uint32_t i = 0; i < batch; i++) {
            if (!grow(b, t[i], 1))
                return -1;
            tokens[i] = token(b, step * batch + i);
            rows[i] = i;
            runs[i] = (struct model_run){
                .table = t[i], .n_rows = 1, .pos = t[i]->list[0].len - 1};
        }
        struct model_batch one = {.n_rows = batch,
                                  .tokens = tokens,
                                  .n_runs = batch,
                                  .runs = runs,
                                  .n_logits = batch,
                                  .logit_rows = rows,
                                  .logits = b->logits,
                                  .defer_gates = true};
        model_step(b->model, &one);
    }
    model_finish_gates(b->model);
    return (double)(clock_us() - t0) / 1e6;
}

static double time_decode(const struct bench *b, uint32_t batch, uint32_t depth)
{
    struct table *t[BATCH_MAX] = {NULL};
    bool ready = true;
    for (uint32_t i = 0; i < batch && ready; i++) {
        t[i] = new_table(b, depth + DECODE_STEPS);
        ready = t[i] && fill(b, t[i], depth);
    }
    double s = ready ? time_steps(b, t, batch) : -1;
    for (uint32_t i = 0; i < batch; i++)
        table_free(t[i]);
    return s;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of a row's samples, in rising order. */
struct samples {
    double s[ROUNDS_MAX];
    uint32_t n;
};

static enum err add_sample(struct bench *b, struct samples *to, uint32_t batch,
                           uint32_t length, struct errmsg *m)
{
    double s = batch ? time_decode(b, batch, length) : time_prefill(b, length);
    if (s < 0)
        return err_set(m, ERR_NOMEM, "no memory for %u sequences of %u",
                       batch ? batch : 1, length);
    to->s[to->n++] = s;
    return OK;
}

/* A sample without and one with gates, right after each other: a neighbour
 * that slows the machine down then slows both. */
static enum err add_samples(struct bench *b, struct samples to[2],
                            uint32_t batch, uint32_t length, struct errmsg *m)
{
    enum err rc = add_sample(b, &to[0], batch, length, m);
    if (rc != OK || !b->gate)
        return rc;
    rc = model_set_gates(b->model, b->gate, m);
    if (rc == OK)
        rc = add_sample(b, &to[1], batch, length, m);
    if (rc == OK)
        rc = model_set_gates(b->model, NULL, m);
    return rc;
}

static void print_row(const struct bench *b, uint32_t batch, uint32_t length,
                      const struct samples x[2])
{
    double tokens = batch ? (double)batch * DECODE_STEPS : (double)length;
    printf("%-8s %6u %8u %12.1f %12.1f", batch ? "decode" : "prefill",
           batch ? batch : 1, length, tokens / x[0].s[0],
           tokens / x[0].s[x[0].n / 2]);
    if (b->gate)
        printf(" %12.1f %7.1f%%", tokens / x[1].s[0],
               100 * (x[1].s[0] / x[0].s[0] - 1));
    putchar('\n');
    fflush(stdout);
}

static void put_row(const struct bench *b, uint32_t batch, uint32_t length,
                    const struct samples x[2])
{
    double tokens = batch ? (double)batch * DECODE_STEPS : (double)length;
    cJSON *row = cJSON_CreateObject();
    cJSON_AddStringToObject(row, "what", batch ? "decode" : "prefill");
    cJSON_AddNumberToObject(row, "batch", batch ? batch : 1);
    cJSON_AddNumberToObject(row, batch ? "depth" : "tokens", length);
    cJSON_AddNumberToObject(row, "tokens_per_s", tokens / x[0].s[0]);
    cJSON_AddNumberToObject(row, "tokens_per_s_median",
                            tokens / x[0].s[x[0].n / 2]);
    if (b->gate) {
        cJSON_AddNumberToObject(row, "gates_tokens_per_s", tokens / x[1].s[0]);
        cJSON_AddNumberToObject(row, "gates_tokens_per_s_median",
                                tokens / x[1].s[x[1].n / 2]);
        cJSON_AddNumberToObject(row, "gates_cost", x[1].s[0] / x[0].s[0] - 1);
    }
    cJSON_AddItemToArray(b->rows, row);
}

/* One row of the table: batch 0 is a prompt of `length` tokens. */
static enum err measure(struct bench *b, uint32_t batch, uint32_t length,
                        struct errmsg *m)
{
    struct samples x[2] = {{.n = 0}};
    enum err rc = OK;
    for (uint32_t i = 0; i < b->set.rounds && rc == OK; i++)
        rc = add_samples(b, x, batch, length, m);
    if (rc != OK)
        return rc;
    for (int i = 0; i < 2; i++)
        qsort(x[i].s, x[i].n, sizeof(x[i].s[0]), by_value);
    if (!b->set.json || strcmp(b->set.json, "-") != 0)
        print_row(b, batch, length, x);
    put_row(b, batch, length, x);
    return OK;
}

static enum err measure_all(struct bench *b, struct errmsg *m)
{
    const struct settings *s = &b->set;
    enum err rc = OK;
    /* The first touch of weights and scratch is nobody's speed. */
    time_prefill(b, 16);
    for (uint32_t i = 0; i < s->prompts.n && rc == OK; i++)
        rc = measure(b, 0, s->prompts.value[i], m);
    for (uint32_t d = 0; d < s->depths.n && rc == OK; d++)
        for (uint32_t i = 0; i < s->batches.n && rc == OK; i++)
            rc = measure(b, s->batches.value[i], s->depths.value[d], m);
    return rc;
}

static cJSON *describe(struct bench *b)
{
    const struct model_info *i = model_info(b->model);
    cJSON *tree = cJSON_CreateObject();
    cJSON_AddStringToObject(tree, "model", b->set.model);
    cJSON_AddStringToObject(tree, "arch", i->arch);
    cJSON_AddNumberToObject(tree, "params", (double)i->n_params);
    cJSON_AddNumberToObject(tree, "weight_bytes", (double)i->file_bytes);
    cJSON_AddNumberToObject(tree, "packed_bytes", (double)i->packed_bytes);
    cJSON_AddNumberToObject(tree, "scratch_bytes", (double)i->scratch_bytes);
    cJSON_AddStringToObject(tree, "kernels", b->ops->name);
    cJSON_AddStringToObject(tree, "kv_type", kv_type_name(b->set.kv_type));
    cJSON_AddNumberToObject(tree, "threads", workers_count(b->workers));
    cJSON_AddNumberToObject(tree, "load_s", b->load_s);
    b->rows = cJSON_AddArrayToObject(tree, "rows");
    return tree;
}

static enum err put_json(const char *path, const cJSON *tree, struct errmsg *m)
{
    struct buf text = {0};
    enum err rc = json_put_value(&text, tree);
    if (rc == OK)
        rc = buf_putc(&text, '\n');
    if (rc != OK)
        err_set(m, rc, "no memory for the results");
    else if (strcmp(path, "-") == 0)
        fputs(text.data, stdout);
    else
        rc = file_replace_shared(path, text.data, text.len, m);
    buf_fini(&text);
    return rc;
}

static void print_head(const struct bench *b)
{
    printf("%s, %s kernels, %d threads, %s KV, loaded in %.2f s\n"
           "%-8s %6s %8s %12s %12s",
           b->set.model, b->ops->name, workers_count(b->workers),
           kv_type_name(b->set.kv_type), b->load_s, "what", "batch", "length",
           "best tok/s", "median");
    if (b->gate)
        printf(" %12s %8s", "with gates", "cost");
    putchar('\n');
}

int speed_main(int argc, char **argv)
{
    struct bench b = {.logits = NULL};
    struct errmsg m = {""};
    cJSON *tree = NULL;
    if (!parse(&b.set, argc, argv)) {
        fputs(usage, stderr);
        return EXIT_BAD_USAGE;
    }
    if (b.set.wants_help) {
        fputs(usage, stdout);
        return EXIT_SUCCESS;
    }
    enum err rc = open_bench(&b, &m);
    if (rc == OK) {
        tree = describe(&b);
        if (!b.set.json || strcmp(b.set.json, "-") != 0)
            print_head(&b);
        rc = measure_all(&b, &m);
    }
    if (rc == OK && b.set.json)
        rc = put_json(b.set.json, tree, &m);
    if (rc != OK)
        fprintf(stderr, "ebb bench: %s\n", m.text);
    cJSON_Delete(tree);
    close_bench(&b);
    return rc == OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
