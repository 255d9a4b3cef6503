#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/utf8.h"
#include "server/command/gates_internal.h"

enum { WINDOWS_MAX = 16, TEXT_MAX = 256 << 20 };

struct show_flags {
    char *model;
    struct config_list file, text;
    int64_t tokens, threads;
};

#define FIELD(f) offsetof(struct show_flags, f)

static const struct option show_options[] = {
    {.name = "model",
     .type = OPT_STRING,
     .field = FIELD(model),
     .word = "FILE",
     .help = "A model that the gates must fit; if they do not, the reason is "
             "printed and the exit status is 1."},
    {.name = "text",
     .type = OPT_WORDS,
     .field = FIELD(text),
     .word = "FILE",
     .help = "With --model: how long the gates keep the tokens of this text. "
             "Up to 16 windows of it are read."},
    {.name = "tokens",
     .type = OPT_INT,
     .field = FIELD(tokens),
     .dflt = "512",
     .min = 2,
     .max = 1 << 17,
     .word = "N",
     .help = "Tokens of a window."},
    MODEL_FILE_THREADS(FIELD(threads)),
};

const struct flags gates_show_flags = {
    .usage = "ebb gates show FILE [--model FILE [--text FILE]]",
    .about = "Prints what a file of retention gates holds.",
    .option = show_options,
    .n = sizeof(show_options) / sizeof(show_options[0]),
    .has_words = true,
    .words = FIELD(file),
};

struct showing {
    struct show_flags o;
    struct safetensors *file;
    struct gate *gate;
    struct gates_model model;
};

/* Control characters of a hostile file must not reach the terminal. */
static void print_text(const char *s)
{
    for (; *s != '\0'; s++)
        putchar((unsigned char)*s < 32 || *s == 127 ? '?' : *s);
}

static void print_meta(const struct showing *s, const char *key)
{
    const char *value = safetensors_meta(s->file, key);
    if (value == NULL)
        return;
    printf("  %s: ", key);
    print_text(value);
    putchar('\n');
}

static void print_file(const struct showing *s)
{
    static const char *const keys[] = {"format",           "gate",
                                       "base_model",       "base_fingerprint",
                                       "base_file_sha256", "m"};
    const struct gate_shape *g = &s->gate->shape;
    printf("%s: gates of type %s for %u layers x %u KV heads, inputs of %u, "
           "width %u, %zu parameters, %zu tensors of %s\n",
           s->o.file.item[0], gate_kind_name(g->kind), g->n_layers,
           g->n_kv_heads, g->n_embd, g->width, gate_n_params(s->gate),
           safetensors_count(s->file),
           dtype_name(safetensors_at(s->file, 0)->type));
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        print_meta(s, keys[i]);
    for (int i = 0; i < GATES_SAYS; i++)
        print_meta(s, gates_says_key((enum gates_says)i));
}

static enum err open_model(struct showing *s, struct errmsg *m)
{
    enum err rc = gates_model_open(&s->model, s->o.model, s->o.threads, m);
    if (rc != OK)
        return rc;
    struct gate_shape need = gates_model_shape(&s->model);
    struct errmsg why = {""};
    rc = gate_check_fit(&s->gate->shape, &need, &why);
    if (rc == OK)
        rc = gate_check_base(s->file, s->model.fingerprint, &why);
    if (rc != OK)
        return err_set(m, rc, "%s does not fit %s: %s", s->o.file.item[0],
                       s->o.model, why.text);
    printf("fits %s (%s)\n", s->o.model,
           s->model.info.name[0] != '\0' ? s->model.info.name
                                         : s->model.info.arch);
    return OK;
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static double at_percent(const float *sorted, size_t n, double percent)
{
    return (double)sorted[(size_t)((double)(n - 1) * percent / 100.0 + 0.5)];
}

static void print_row(const char *name, float *beta, size_t n)
{
    double sum = 0.0;
    for (size_t i = 0; i < n; i++)
        sum += (double)beta[i];
    qsort(beta, n, sizeof(*beta), by_value);
    printf("%6s %9.6f %9.6f %9.6f %9.6f %9.6f %9.6f\n", name, sum / (double)n,
           at_percent(beta, n, 5), at_percent(beta, n, 25),
           at_percent(beta, n, 50), at_percent(beta, n, 75),
           at_percent(beta, n, 95));
}

/* beta is [n_layers][n_windows][heads * n_tokens]. */
static void print_betas(const struct showing *s, float *beta, size_t per_layer,
                        size_t n_tokens)
{
    const struct gate_shape *g = &s->gate->shape;
    printf("beta over %zu tokens:\n%6s %9s %9s %9s %9s %9s %9s\n", n_tokens,
           "layer", "mean", "5%", "25%", "median", "75%", "95%");
    for (uint32_t l = 0; l < g->n_layers; l++) {
        char name[16];
        snprintf(name, sizeof(name), "%u", l);
        print_row(name, beta + l * per_layer, per_layer);
    }
    print_row("all", beta, g->n_layers * per_layer);
}

static enum err tokenise(const struct showing *s, struct tokens *out,
                         const char *text, size_t n, struct errmsg *m)
{
    enum err rc = utf8_check(text, n, m);
    if (rc != OK)
        return rc;
    rc = tokenizer_encode(s->model.file.tokenizer, text, n, TOKENIZER_ADD_BOS,
                          out);
    return rc == OK ? OK
                    : err_set(m, rc, "cannot tokenise a text of %zu bytes", n);
}

static enum err read_tokens(struct showing *s, struct tokens *out,
                            struct errmsg *m)
{
    struct buf text = {0};
    struct errmsg why = {""};
    const char *path = s->o.text.item[0];
    enum err rc = file_read_all(&text, path, TEXT_MAX, m);
    if (rc != OK)
        return rc;
    rc = tokenise(s, out, text.data == NULL ? "" : text.data, text.len, &why);
    buf_fini(&text);
    if (rc != OK)
        return err_set(m, rc, "%s: %s", path, why.text);
    if (out->n < (size_t)s->o.tokens)
        return err_set(m, ERR_INVAL,
                       "%s has %zu tokens; a window of --tokens %" PRId64
                       " is needed",
                       path, out->n, s->o.tokens);
    return OK;
}

static enum err run_windows(struct showing *s, const struct tokens *tokens,
                            struct errmsg *m)
{
    const struct gate_shape *g = &s->gate->shape;
    struct gates_windows w = {.tokens = tokens->id,
                              .n_tokens = (uint32_t)s->o.tokens};
    size_t n = tokens->n / w.n_tokens;
    w.n = n < WINDOWS_MAX ? (uint32_t)n : WINDOWS_MAX;
    size_t per_layer = (size_t)w.n * g->n_kv_heads * w.n_tokens;
    float *beta = calloc(per_layer * g->n_layers, sizeof(*beta));
    if (beta == NULL)
        return err_set(m, ERR_NOMEM, "no memory for %u windows", w.n);
    enum err rc = gates_read_beta(&s->model, s->gate, &w, beta, m);
    if (rc == OK)
        print_betas(s, beta, per_layer, (size_t)w.n * w.n_tokens);
    free(beta);
    return rc;
}

static enum err show(struct showing *s, struct errmsg *m)
{
    struct errmsg why = {""};
    enum err rc = safetensors_open(&s->file, s->o.file.item[0], m);
    if (rc != OK)
        return rc;
    rc = gate_read(&s->gate, s->file, NULL, &why);
    if (rc != OK)
        return err_set(m, rc, "%s: %s", s->o.file.item[0], why.text);
    print_file(s);
    if (s->o.model == NULL)
        return OK;
    rc = open_model(s, m);
    if (rc != OK || s->o.text.n == 0)
        return rc;
    struct tokens tokens = {0};
    rc = read_tokens(s, &tokens, m);
    if (rc == OK)
        rc = run_windows(s, &tokens, m);
    tokens_fini(&tokens);
    return rc;
}

static enum err check_flags(const struct show_flags *o, struct errmsg *m)
{
    if (o->file.n != 1)
        return err_set(m, ERR_INVAL,
                       "one file of gates is needed, %zu are "
                       "given",
                       o->file.n);
    if (o->text.n > 1)
        return err_set(m, ERR_INVAL, "--text: one file is read, %zu are given",
                       o->text.n);
    if (o->text.n == 1 && o->model == NULL)
        return err_set(m, ERR_INVAL, "--text needs --model FILE");
    return OK;
}

int gates_show(int argc, char *const *argv)
{
    struct showing s = {0};
    struct errmsg m = {""};
    bool help = false;
    if (flags_parse(&s.o, &help, &gates_show_flags, argc, argv, &m) != OK)
        return gates_fail(GATES_USAGE, &m);
    enum err rc = check_flags(&s.o, &m);
    int status = rc == OK ? GATES_FAILED : GATES_USAGE;
    if (rc == OK)
        rc = show(&s, &m);
    gates_model_close(&s.model);
    gate_free(s.gate);
    safetensors_close(s.file);
    flags_fini(&s.o, &gates_show_flags);
    return rc == OK ? GATES_DONE : gates_fail(status, &m);
}
