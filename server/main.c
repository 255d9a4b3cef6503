/* main.c - the program `ebb`: its commands, and how the parts of the server
 * are put together.
 *
 * Only here a process exits. Status 0: done; 1: it failed; 2: the command
 * line or the settings are wrong.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/utf8.h"
#include "base/workers.h"
#include "bench/eval/eval.h"
#include "bench/speed.h"
#include "config/config.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/prompt.h"
#include "runtime/gguf/gguf.h"
#include "runtime/kernels/ops.h"
#include "runtime/model/model.h"
#include "runtime/text/tokenizer.h"
#include "server/command/gates.h"
#include "server/merge_config.h"
#include "server/server.h"

#define VERSION "0.1.0"

enum { EXIT_USAGE = 2 };

enum {
    /* Tokens of one step at most: decodes first, the rest is prefill. */
    STEP_ROWS = 256,
    STEP_TARGET_US = 80 * 1000,
    POLL_MS = 20,
    /* After the engine's end, for the last events to reach the clients. */
    FLUSH_MS = 2000
};

/* Everything of a running server, in the order in which it is made. */
struct parts {
    struct config config;
    struct gguf *gguf;
    struct workers *workers;
    const struct ops *ops;
    struct model *model;
    struct tokenizer *tokenizer;
    struct prompt *prompt;
    struct engine *engine;
    struct server *server;
    char model_id[SERVER_NAME_MAX];
    char fingerprint[32];
    int64_t created;
    uint32_t max_context;
    struct forget_rules rules; /* of requests that say nothing */
    struct buf config_json;    /* the settings that are in force */
};

static void print_usage(FILE *to)
{
    fputs("ebb serves a language model over OpenAI's HTTP API.\n\n"
          "  ebb serve [options]   start the server\n"
          "  ebb bench [options]   tokens per second of a model here\n"
          "  ebb eval [options]    what policies cost in quality\n"
          "  ebb gates             train and show retention gates\n"
          "  ebb help serve|bench|eval|gates   their options\n"
          "  ebb --version\n",
          to);
}

static int print_serve_help(void)
{
    struct buf text = {0};
    int status = EXIT_FAILURE;
    if (config_put_help(&text) == OK) {
        fputs(text.data, stdout);
        status = EXIT_SUCCESS;
    }
    buf_fini(&text);
    return status;
}

/* The file's name without folder and ending: it stays the same wherever the
 * file lies, and tells nobody where that is. */
static void name_model(struct parts *p)
{
    const char *path = p->config.model;
    const char *slash = strrchr(path, '/');
    const char *stem = slash ? slash + 1 : path;
    size_t n = strlen(stem);
    if (n > 5 && strcmp(stem + n - 5, ".gguf") == 0)
        n -= 5;
    if (n >= sizeof(p->model_id))
        n = sizeof(p->model_id) - 1;
    memcpy(p->model_id, stem, n);
    p->model_id[n] = '\0';
    bool valid = utf8_is_valid(p->model_id, n);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)p->model_id[i];
        if (c <= ' ' || c == 0x7F || (c >= 0x80 && !valid))
            p->model_id[i] = '_';
    }
    struct stat st;
    p->created = stat(path, &st) == 0 ? (int64_t)st.st_mtime : 0;
    if (p->created <= 0)
        p->created = 1;
}

/* The same for the same program and model: clients compare it. */
static enum err make_fingerprint(struct parts *p, struct errmsg *m)
{
    struct hash h = {0};
    uint8_t digest[HASH_BYTES], base[HASH_BYTES];
    char hex[HASH_HEX];
    enum err rc = gguf_fingerprint(p->gguf, base, m);
    if (rc != OK)
        return rc;
    rc = hash_init(&h);
    if (rc == OK)
        rc = hash_update(&h, VERSION, sizeof(VERSION));
    if (rc == OK)
        rc = hash_update(&h, base, sizeof(base));
    if (rc == OK)
        rc = hash_update(&h, p->model_id, strlen(p->model_id));
    if (rc == OK)
        rc = hash_final(&h, digest);
    hash_fini(&h);
    if (rc != OK)
        return err_set(m, rc, "cannot hash the model's shape");
    hash_hex(hex, digest, sizeof(digest));
    snprintf(p->fingerprint, sizeof(p->fingerprint), "fp_%.12s", hex);
    return OK;
}

static enum err read_context(struct parts *p, struct errmsg *m)
{
    uint32_t trained = model_info(p->model)->context_length;
    int64_t wish = p->config.max_context;
    if (wish > (int64_t)trained)
        return err_set(m, ERR_INVAL,
                       "--max-context: %" PRId64
                       " is more than the %u tokens that the model was "
                       "trained for",
                       wish, trained);
    p->max_context = wish > 0 ? (uint32_t)wish : trained;
    return OK;
}

static uint32_t step_rows(const struct parts *p)
{
    uint32_t running = (uint32_t)p->config.max_running;
    return running + 64 > STEP_ROWS ? running + 64 : STEP_ROWS;
}

/* Gates that do not fit are a wrong setting, whatever is wrong with them. */
static enum err find_gates(struct parts *p, struct errmsg *m)
{
    char path[GATE_PATH_MAX];
    struct errmsg why = {0};
    enum err rc =
        model_find_gates(p->model, p->gguf, p->config.gates, path, &why);
    if (rc != OK)
        return err_set(m, rc == ERR_NOMEM ? rc : ERR_INVAL, "--gates: %s",
                       why.text);
    if (path[0] != '\0')
        log_msg(LOG_LEVEL_INFO, "retention gates: %s", path);
    else
        log_msg(LOG_LEVEL_INFO, "no retention gates: %s",
                strcmp(p->config.gates, "none") == 0
                    ? "--gates none"
                    : "none were found for this model");
    return config_set_string(&p->config.gates, path[0] != '\0' ? path : "none");
}

static enum err load_model(struct parts *p, struct errmsg *m)
{
    struct model_options o = {.max_rows = step_rows(p),
                              .max_runs = (uint32_t)p->config.max_running};
    enum err rc = gguf_open(&p->gguf, p->config.model, m);
    if (rc == OK)
        rc = workers_new(&p->workers, (int)p->config.threads, m);
    if (rc != OK)
        return rc;
    p->ops = ops_best();
    o.ops = p->ops;
    o.workers = p->workers;
    o.max_context = (uint32_t)p->config.max_context;
    rc = model_load(&p->model, p->gguf, &o, m);
    if (rc == OK)
        rc = read_context(p, m);
    if (rc == OK)
        rc = find_gates(p, m);
    if (rc == OK)
        rc = tokenizer_from_gguf(&p->tokenizer, p->gguf, m);
    if (rc == OK)
        rc = prompt_from_gguf(&p->prompt, p->gguf, p->tokenizer, m);
    if (rc == OK)
        rc = make_fingerprint(p, m);
    return rc;
}

static enum err find_rules(struct forget_rules *r, const struct config *c,
                           struct errmsg *m)
{
    struct errmsg why = {0};
    enum err rc = OK;
    if (c->policy[0] != '\0') {
        rc = forget_policy_find(&r->policy, c->policy, &why);
        if (rc != OK)
            return err_set(m, ERR_INVAL, "--policy: %s", why.text);
    }
    if (c->admission[0] != '\0')
        rc =
            forget_admission_find(&r->admission, c->admission, r->policy, &why);
    if (rc != OK)
        return err_set(m, ERR_INVAL, "--admission: %s", why.text);
    r->session_tokens = (uint32_t)c->session_tokens;
    return OK;
}

/* Without gates no default needs them, so the name is the user's. */
static enum err refuse_without_gates(const struct parts *p, struct errmsg *m)
{
    const struct config *c = &p->config;
    bool is_policy = forget_policy_needs_gates(p->rules.policy);
    return err_set(m, ERR_INVAL,
                   "--%s: %.40s ranks by learned retention, and this model "
                   "has no retention gates: train some (ebb gates train), or "
                   "use %s",
                   is_policy ? "policy" : "admission",
                   is_policy ? c->policy : c->admission,
                   is_policy ? "selkv-window" : "the ranking selkv");
}

/* What depends on the model: whether there are gates, how long the context
 * is. */
static enum err check_rules(const struct parts *p, struct errmsg *m)
{
    const struct forget_rules *r = &p->rules;
    if (forget_needs_gates(r) && !model_has_gates(p->model))
        return refuse_without_gates(p, m);
    if (forget_fate_needs_columns(r->admission.fate) &&
        p->config.watch_columns_is_off)
        return err_set(m, ERR_INVAL,
                       "--admission: %.40s needs the attention that all tokens "
                       "of a prompt give to each entry, and --watch-columns "
                       "is off: leave that out, or name another fate",
                       p->config.admission);
    if (p->config.unbounded_context && r->session_tokens >= p->max_context)
        return err_set(m, ERR_INVAL,
                       "--session-tokens: a cap of %u tokens is not below the "
                       "context of %u, as --unbounded-context needs it",
                       r->session_tokens, p->max_context);
    return OK;
}

/* The rules, and the settings with what was left open filled in. */
static enum err read_rules(struct parts *p, struct errmsg *m)
{
    struct config *c = &p->config;
    char admission[FORGET_ADMISSION_MAX];
    p->rules = forget_default_rules(model_has_gates(p->model),
                                    model_gates_are_tied(p->model));
    enum err rc = find_rules(&p->rules, c, m);
    if (rc == OK)
        rc = check_rules(p, m);
    if (rc != OK)
        return rc;
    c->max_context = p->max_context;
    if (forget_fate_needs_columns(p->rules.admission.fate))
        c->watch_columns = true;
    forget_admission_name(admission, &p->rules);
    rc = config_set_string(&c->policy, forget_policy_name(p->rules.policy));
    if (rc == OK)
        rc = config_set_string(&c->admission, admission);
    if (rc == OK)
        rc = config_put_json(&p->config_json, c);
    return rc == OK ? OK : err_set(m, rc, "no memory for the settings");
}

static struct forget_options forget_options(const struct parts *p)
{
    const struct config *c = &p->config;
    return (struct forget_options){
        .rules = p->rules,
        .min_head = (uint32_t)c->min_tokens_per_head,
        .n_sinks = (uint32_t)c->protect_sinks,
        .n_recent = (uint32_t)c->protect_recent,
        .idle_decay = c->idle_decay,
        .unbounded_context = c->unbounded_context,
        .watch_columns = c->watch_columns,
        .reposition = c->reposition,
        .per_head_sets = c->per_head_sets,
    };
}

static enum err start_engine(struct parts *p, struct errmsg *m)
{
    const struct config *c = &p->config;
    struct engine_options o = {
        .model = p->model,
        .tokenizer = p->tokenizer,
        .workers = p->workers,
        .kv_bytes = c->kv_memory,
        .kv_type = (enum kv_type)c->kv_type,
        .max_context = p->max_context,
        .max_running = (uint32_t)c->max_running,
        .max_queue = (uint32_t)c->max_queue,
        .queue_us = (uint64_t)c->queue_timeout * 1000,
        .max_step_rows = step_rows(p),
        .step_target_us = STEP_TARGET_US,
        .deterministic = c->deterministic,
        .forget = forget_options(p),
        .merge = merge_config_options(c),
    };
    struct errmsg why = {""};
    enum err rc = engine_new(&p->engine, &o, &why);
    if (rc == ERR_BUDGET)
        return err_set(m, ERR_INVAL, "--kv-memory: %s", why.text);
    return rc == OK ? OK : err_set(m, rc, "%s", why.text);
}

static enum err start_server(struct parts *p, struct errmsg *m)
{
    const struct config *c = &p->config;
    const struct model_info *info = model_info(p->model);
    struct server_options o = {
        .host = c->host,
        .port = (uint16_t)c->port,
        .engine = p->engine,
        .prompt = p->prompt,
        .model_id = p->model_id,
        .aliases = (const char *const *)c->alias.item,
        .n_aliases = c->alias.n,
        .any_model = c->any_model,
        .model_created = p->created,
        .arch = info->arch,
        .n_layers = info->n_layers,
        .n_kv_heads = info->n_kv_heads,
        .max_context = engine_max_context(p->engine),
        .n_vocab = engine_n_vocab(p->engine),
        .fingerprint = p->fingerprint,
        .version = VERSION,
        .cpu = p->ops->name,
        .backend = "cpu",
        .cors_origins = (const char *const *)c->cors_origin.item,
        .n_cors_origins = c->cors_origin.n,
        .forget = forget_options(p),
        .has_gates = model_has_gates(p->model),
        .pool_tokens = engine_pool_tokens(p->engine),
        .config_json = p->config_json.data,
        .max_body = c->max_body,
        .max_queue = (uint32_t)c->max_queue,
    };
    return server_new(&p->server, &o, m);
}

static double mib(uint64_t bytes)
{
    return (double)bytes / (1024.0 * 1024.0);
}

static void warn_of_bounded_context(const struct parts *p)
{
    uint64_t room = engine_pool_tokens(p->engine);
    if (!p->config.unbounded_context)
        return;
    if (p->rules.admission.off)
        log_msg(LOG_LEVEL_WARN,
                "--unbounded-context does nothing: with --admission none no "
                "conversation goes on beyond the context");
    else if (p->rules.session_tokens == 0 && room >= p->max_context)
        log_msg(LOG_LEVEL_WARN,
                "--unbounded-context does nothing: it needs --session-tokens "
                "below the context of %u, as the KV budget holds %" PRIu64
                " tokens",
                p->max_context, room);
}

static void print_start(const struct parts *p)
{
    const struct model_info *i = model_info(p->model);
    uint64_t network = server_memory_max(p->server);
    uint64_t kv = p->config.kv_memory;
    uint64_t step = i->scratch_bytes + engine_memory_bytes(p->engine);
    uint64_t sum = i->file_bytes + i->packed_bytes + step + kv + network;
    printf("ebb " VERSION ": %s (%s, %u layers, %u KV heads, vocabulary %u), "
           "context %u, %d threads, %s kernels\n",
           p->model_id, i->arch, i->n_layers, i->n_kv_heads, i->n_vocab,
           p->max_context, workers_count(p->workers), p->ops->name);
    printf("memory: model file %.1f MiB + repacked weights %.1f + KV budget "
           "%.1f + activations, logits and queries %.1f + network buffers up "
           "to %.1f = "
           "%.1f MiB\n",
           mib(i->file_bytes), mib(i->packed_bytes), mib(kv), mib(step),
           mib(network), mib(sum));
    uint64_t room = engine_pool_tokens(p->engine);
    if (room < p->max_context && p->rules.policy == FORGET_EXACT)
        log_msg(LOG_LEVEL_WARN,
                "the KV budget of %" PRIu64 " bytes holds %" PRIu64
                " tokens, the context is %u: longer requests are refused; "
                "--kv-memory raises it",
                kv, room, p->max_context);
    warn_of_bounded_context(p);
    char admission[FORGET_ADMISSION_MAX];
    forget_admission_name(admission, &p->rules);
    printf("policy: %s, admission %s\n", forget_policy_name(p->rules.policy),
           admission);
    printf("listening on %s\n", server_url(p->server));
    fflush(stdout);
}

static void stop_parts(struct parts *p)
{
    server_free(p->server);
    prompt_free(p->prompt);
    tokenizer_free(p->tokenizer);
    model_free(p->model);
    workers_free(p->workers);
    gguf_close(p->gguf);
    buf_fini(&p->config_json);
    config_fini(&p->config);
}

/* Waits for one of the signals; true if it came within the time. */
static bool wait_signal(const sigset_t *set, int64_t ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    return sigtimedwait(set, NULL, &t) > 0;
}

static bool is_idle(const struct parts *p)
{
    return server_is_idle(p->server) && engine_is_idle(p->engine);
}

/* Running answers may finish until the time is over; a second signal ends the
 * wait. What is left then ends with an error inside its stream. */
static void drain(struct parts *p, const sigset_t *set)
{
    int64_t until = clock_us() + p->config.drain_timeout * 1000;
    log_msg(LOG_LEVEL_INFO,
            "going down: no new requests; running answers have up to %g s to "
            "finish, a second signal ends them at once",
            (double)p->config.drain_timeout / 1000);
    server_drain(p->server);
    engine_drain(p->engine);
    bool hurry = false;
    while (!hurry && !is_idle(p) && clock_us() < until)
        hurry = wait_signal(set, POLL_MS);
    server_detach_engine(p->server);
    engine_free(p->engine);
    p->engine = NULL;
    /* Errors that say so still go out; one more signal does without. */
    bool is_cut = false;
    for (int i = 0; !is_cut && i < FLUSH_MS && !server_is_idle(p->server);
         i += POLL_MS)
        is_cut = wait_signal(set, POLL_MS);
}

static int serve_until_signal(struct parts *p, const sigset_t *set)
{
    struct errmsg m = {0};
    name_model(p);
    enum err rc = load_model(p, &m);
    if (rc == OK)
        rc = read_rules(p, &m);
    if (rc == OK)
        rc = start_engine(p, &m);
    if (rc == OK)
        rc = start_server(p, &m);
    if (rc != OK) {
        fprintf(stderr, "ebb: %s\n", m.text);
        engine_free(p->engine);
        return rc == ERR_INVAL && p->model ? EXIT_USAGE : EXIT_FAILURE;
    }
    print_start(p);
    while (!wait_signal(set, 1000 * 1000))
        continue;
    drain(p, set);
    return EXIT_SUCCESS;
}

static int serve(int argc, char **argv)
{
    struct parts p = {0};
    struct errmsg m = {0};
    if (config_load(&p.config, argc, argv, &m) != OK) {
        fprintf(stderr, "ebb: %s\n", m.text);
        return EXIT_USAGE;
    }
    if (p.config.help) {
        config_fini(&p.config);
        return print_serve_help();
    }
    log_setup((enum log_level)p.config.log_level,
              (enum log_format)p.config.log_format);
    for (size_t i = 0; i < p.config.warning.n; i++)
        log_msg(LOG_LEVEL_WARN, "%s", p.config.warning.item[i]);
    /* Before any thread starts, so that all of them leave the signals to the
     * loop below. */
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    int status = serve_until_signal(&p, &set);
    stop_parts(&p);
    return status;
}

/* Set by SIGINT and SIGTERM where a command, not the server, is running. */
static atomic_bool stop_wanted;

static void want_stop(int signal_number)
{
    (void)signal_number;
    atomic_store(&stop_wanted, true);
}

/* A second signal ends the process at once. */
static void stop_on_signal(void)
{
    struct sigaction action = {.sa_handler = want_stop,
                               .sa_flags = (int)SA_RESETHAND | SA_RESTART};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

static int gates(int argc, char **argv)
{
    stop_on_signal();
    return gates_command(argc, argv, &stop_wanted);
}

static int eval(int argc, char **argv)
{
    stop_on_signal();
    return eval_command(argc, argv, &stop_wanted);
}

static int help(int argc, char **argv)
{
    if (argc == 0) {
        print_usage(stdout);
        return EXIT_SUCCESS;
    }
    if (strcmp(argv[0], "serve") == 0)
        return print_serve_help();
    if (strcmp(argv[0], "bench") == 0)
        return speed_main(2, (char *[]){"bench", "--help", NULL});
    if (strcmp(argv[0], "eval") == 0)
        return eval_help();
    if (strcmp(argv[0], "gates") == 0)
        return gates_help(argc > 1 ? argv[1] : NULL);
    fprintf(stderr, "ebb: there is no command \"%s\"\n", argv[0]);
    print_usage(stderr);
    return EXIT_USAGE;
}

/* Results that nobody got are no success: the disk is full, say. */
static int check_stdout(int status)
{
    if (fflush(stdout) == 0 && ferror(stdout) == 0)
        return status;
    fprintf(stderr, "ebb: cannot write to standard output: %s\n",
            strerror(errno));
    return status == EXIT_SUCCESS ? EXIT_FAILURE : status;
}

/* Those that end by themselves. */
static int run_command(int argc, char **argv)
{
    const char *command = argv[1];
    if (strcmp(command, "bench") == 0)
        return speed_main(argc - 1, argv + 1);
    if (strcmp(command, "gates") == 0)
        return gates(argc - 2, argv + 2);
    if (strcmp(command, "eval") == 0)
        return eval(argc - 2, argv + 2);
    if (strcmp(command, "--version") == 0) {
        puts("ebb " VERSION);
        return EXIT_SUCCESS;
    }
    if (strcmp(command, "help") == 0 || strcmp(command, "--help") == 0 ||
        strcmp(command, "-h") == 0)
        return help(argc - 2, argv + 2);
    fprintf(stderr, "ebb: there is no command \"%s\"\n", command);
    print_usage(stderr);
    return EXIT_USAGE;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_usage(stderr);
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "serve") == 0)
        return serve(argc - 2, argv + 2);
    return check_stdout(run_command(argc, argv));
}
