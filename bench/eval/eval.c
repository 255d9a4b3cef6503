#include "bench/eval/eval.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/outputs.h"
#include "base/utf8.h"
#include "bench/eval/chats.h"
#include "bench/eval/suite.h"
#include "config/flags.h"
#include "gates/gate_find.h"
#include "runtime/kernels/ops.h"
#include "server/command/model_file.h"

enum {
    EVAL_DONE = 0,
    EVAL_FAILED = 1,
    EVAL_USAGE = 2,
    NAME_MAX_BYTES = 128,
    IDENTITY_MAX = 512,
    GATES_NAME = 13,
    PASSED_MAX = 512,
    /* Changes when the same settings give other figures than before. */
    FIGURES_VERSION = 1,
    CHATS_VERSION = 2 /* the same of conversations */
};

/* What the lab knows of every sequence; log_beta comes with gates. */
static const uint32_t KNOWN = POLICY_KEYS | POLICY_KEY_NORMS |
                              POLICY_VALUE_NORMS | POLICY_WINDOW | POLICY_PEAK |
                              POLICY_COLUMNS | POLICY_FUTURE;

enum split { SPLIT_TEST, SPLIT_DEV };

struct eval_flags {
    char *model, *gates, *json, *html, *answers, *against, *chats;
    struct config_list policy, budget, tasks, text;
    int64_t context, docs, mode, split, seed, threads, kv_type;
    int64_t sinks, recent, min_tokens_per_head;
};

#define FIELD(f) offsetof(struct eval_flags, f)

static const char *const modes[] = {"agnostic", "aware", NULL};
static const char *const splits[] = {"test", "dev", NULL};
static const char *const kv_types[] = {"f16", "q8_0", "f32", NULL};

static const struct option options[] = {
    {.name = "model",
     .type = OPT_STRING,
     .field = FIELD(model),
     .word = "FILE",
     .help = "The model, a GGUF file. Needed."},
    {.name = "gates",
     .type = OPT_STRING,
     .field = FIELD(gates),
     .dflt = "auto",
     .word = "FILE|auto|none",
     .help = "Retention gates, for dbtrimkv and trimkv. auto takes those in "
             "gates/pretrained that were made for the model."},
    {.name = "policy",
     .type = OPT_LIST,
     .field = FIELD(policy),
     .shown_dflt = "full, no-context, oracle and all others that can be had",
     .word = "NAMES",
     .help = "Policies to compare. full (the server's exact) keeps "
             "everything, no-context nothing "
             "of the document: the two ends of the scale; full is always "
             "measured. oracle keeps what the answers will look at, which no "
             "policy knows. A policy merges what "
             "it does not keep with a fate after its name, keydiff+merge "
             "(lookm, kvmerger, weightedkv and cam besides merge, which is "
             "SelKV's), and is then compared with itself without. Settings "
             "may follow, as in keydiff+merge:alpha=0:min-mass=0:max-ratio=0: "
             "the server's options --merge-*, which are mean-ratio of merge "
             "and min-cosine of kvmerger besides. Those of a policy come "
             "before its fate: keydiff:reposition, "
             "selkv-window:per-head-sets+merge."},
    {.name = "budget",
     .type = OPT_LIST,
     .field = FIELD(budget),
     .dflt = "0.125,0.25,0.5",
     .word = "SHARES",
     .help = "Shares of the prompt's cache entries that stay. Every policy "
             "keeps the same number, protected entries included."},
    {.name = "context",
     .type = OPT_INT,
     .field = FIELD(context),
     .dflt = "1024",
     .min = DOCUMENT_TOKENS_MIN,
     .max = 1 << 17,
     .word = "N",
     .help = "Tokens of a document."},
    {.name = "tasks",
     .type = OPT_LIST,
     .field = FIELD(tasks),
     .shown_dflt = "A,B2,F",
     .word = "NAMES",
     .help = "What is asked: A (next tokens of a book), A2 (a passage again, "
             "with other names), B1 (one number told in a book), B2 (eight "
             "facts), C (a long list), D (names that stand for others), E1 "
             "(what was said in a chat), E2 (and then changed), E3 (compressed "
             "in stages), F (passages "
             "again), G (examples of a rule), I (where people went)."},
    {.name = "docs",
     .type = OPT_INT,
     .field = FIELD(docs),
     .dflt = "40",
     .min = 1,
     .max = 100000,
     .word = "N",
     .help = "Documents of each task. Intervals need at least 40."},
    {.name = "mode",
     .type = OPT_CHOICE,
     .field = FIELD(mode),
     .dflt = "agnostic",
     .choices = modes,
     .help = "Whether the cache is compressed before the question is known, or "
             "with the question in it."},
    {.name = "json",
     .type = OPT_STRING,
     .field = FIELD(json),
     .word = "FILE",
     .help = "Where the results go, as JSON lines. FILE.part keeps what was "
             "measured: the same command goes on from there."},
    {.name = "html",
     .type = OPT_STRING,
     .field = FIELD(html),
     .word = "FILE",
     .help = "A page with charts of quality against bytes."},
    {.name = "answers",
     .type = OPT_STRING,
     .field = FIELD(answers),
     .word = "FILE",
     .help = "Where every document and what the model says about it go, as "
             "JSON lines, instead of --json: the whole run is asked anew."},
    {.name = "against",
     .type = OPT_STRING,
     .field = FIELD(against),
     .word = "NAME",
     .help =
         "A policy of the list that the others are compared with, beside "
         "the best one that keeps other entries: in a table of its own, and "
         "in the rows of --json."},
    {.name = "split",
     .type = OPT_CHOICE,
     .field = FIELD(split),
     .dflt = "test",
     .choices = splits,
     .help = "Texts of the user's cache folder (`make texts USE=\"dev "
             "test\"`): dev for tuning, test for results."},
    {.name = "text",
     .type = OPT_WORDS,
     .field = FIELD(text),
     .word = "FILE...",
     .help = "Texts of your own instead, UTF-8."},
    {.name = "chats",
     .type = OPT_STRING,
     .field = FIELD(chats),
     .word = "FILE",
     .help =
         "Your own conversations instead of tasks: a line of JSON for each, "
         "an array of messages. Every answer is predicted from what was "
         "said before, as far as that has 64 to --context tokens; --docs "
         "takes the first so many."},
    {.name = "seed",
     .type = OPT_INT,
     .field = FIELD(seed),
     .dflt = "1",
     .max = 1000000000,
     .word = "N",
     .help = "Of the documents, of the random policy and of the intervals."},
    {.name = "kv_type",
     .type = OPT_CHOICE,
     .field = FIELD(kv_type),
     .dflt = "f16",
     .choices = kv_types,
     .help = "How cached keys and values are stored."},
    {.name = "sinks",
     .type = OPT_INT,
     .field = FIELD(sinks),
     .dflt = "4",
     .max = 4096,
     .word = "N",
     .help = "First entries that every policy keeps."},
    {.name = "recent",
     .type = OPT_INT,
     .field = FIELD(recent),
     .dflt = "16",
     .max = 4096,
     .word = "N",
     .help = "Newest entries that every policy keeps."},
    {.name = "min_tokens_per_head",
     .type = OPT_INT,
     .field = FIELD(min_tokens_per_head),
     .dflt = "20",
     .min = 1,
     .max = 4096,
     .word = "N",
     .help = "Entries that dbtrimkv leaves every layer and head at least."},
    MODEL_FILE_THREADS(FIELD(threads)),
};

static const struct flags flags = {
    .usage = "ebb eval --model FILE [options]",
    .about =
        "Compares policies: which cache entries stay when there is room for a "
        "part only, and what that costs. Every document runs once with the "
        "full cache; then a copy of that cache is compressed by each policy to "
        "each budget, and the model is asked. nll: of the right tokens; kl: "
        "from the full cache; agree: same next token as with the full cache; "
        "top1: right next token; em: all tokens of an answer right; choice: "
        "right "
        "answer more probable than wrong ones.",
    .option = options,
    .n = sizeof(options) / sizeof(options[0]),
};

struct eval {
    struct eval_flags o;
    struct model_file file;
    struct model *model;
    struct corpus *corpus; /* or */
    struct chats *chats;
    enum task task[TASK_COUNT];
    uint32_t n_tasks;
    struct choices choices;
    struct outputs outputs;
    char name[NAME_MAX_BYTES];   /* of the model: its file without .gguf */
    char sha256[HASH_HEX];       /* of its file */
    char gates_sha256[HASH_HEX]; /* "" without */
    char gates[GATES_NAME];      /* for the rows: how it begins, or "none" */
    char identity[IDENTITY_MAX];
};

static enum err unknown_task(const char *name, struct errmsg *m)
{
    const char *names[TASK_COUNT];
    size_t n = 0;
    if (strcmp(name, task_info(TASK_CHATS)->name) == 0)
        return err_set(m, ERR_INVAL,
                       "--tasks: conversations of your own are named with "
                       "--chats FILE, without --tasks");
    for (int t = 0; t < TASK_COUNT; t++)
        if (t != TASK_CHATS)
            names[n++] = task_info((enum task)t)->name;
    return err_set(m, ERR_INVAL,
                   "--tasks: there is no task \"%.20s\"; the nearest is "
                   "\"%s\"",
                   name, flags_nearest(name, names, n));
}

static enum err add_task(struct eval *e, const char *name, struct errmsg *m)
{
    enum task task;
    if (task_find(&task, name, strlen(name)) != OK || task == TASK_CHATS)
        return unknown_task(name, m);
    for (uint32_t j = 0; j < e->n_tasks; j++)
        if (e->task[j] == task)
            return err_set(m, ERR_INVAL, "--tasks: %s is there twice", name);
    e->task[e->n_tasks++] = task;
    return OK;
}

/* What makes documents that are no conversations, or does not matter there. */
static enum err check_chats(const struct eval *e, struct errmsg *m)
{
    const char *other = e->o.tasks.n > 0         ? "--tasks"
                        : e->o.text.n > 0        ? "--text"
                        : e->o.mode == LAB_AWARE ? "--mode aware"
                                                 : NULL;
    return other == NULL
               ? OK
               : err_set(m, ERR_INVAL,
                         "--chats can't be together with %s: its documents are "
                         "your conversations, and no question comes after "
                         "them",
                         other);
}

static enum err read_tasks(struct eval *e, struct errmsg *m)
{
    static const enum task usual[] = {TASK_A, TASK_B2, TASK_F};
    enum err rc = OK;
    if (e->o.chats != NULL) {
        e->task[e->n_tasks++] = TASK_CHATS;
        return check_chats(e, m);
    }
    for (size_t i = 0; i < e->o.tasks.n && rc == OK; i++)
        rc = add_task(e, e->o.tasks.item[i], m);
    for (size_t i = 0; i < 3 && e->o.tasks.n == 0; i++)
        e->task[e->n_tasks++] = usual[i];
    return rc;
}

/* has: of enum policy_need. */
static enum err read_choices(struct eval *e, uint32_t has, struct errmsg *m)
{
    const struct choices_input in = {
        .policy = &e->o.policy,
        .budget = &e->o.budget,
        .against = e->o.against,
        .like = {.n_sinks = (uint32_t)e->o.sinks,
                 .n_recent = (uint32_t)e->o.recent,
                 .min_head = (uint32_t)e->o.min_tokens_per_head,
                 .seed = (uint64_t)e->o.seed},
        .has = has};
    return choices_read(&e->choices, &in, m);
}

static enum err add_outputs(struct eval *e, struct errmsg *m)
{
    const char *json = e->o.json, *html = e->o.html;
    struct outputs *o = &e->outputs;
    enum err rc = OK;
    if (json != NULL)
        rc = outputs_add(o, "--json", json, m);
    if (json != NULL && rc == OK)
        rc = outputs_add_beside(o, "--json", json, ".part", m);
    if (json != NULL && rc == OK)
        rc = outputs_add_tmp(o, "--json", json, m);
    if (e->o.answers != NULL && rc == OK)
        rc = outputs_add(o, "--answers", e->o.answers, m);
    if (html != NULL && rc == OK)
        rc = outputs_add(o, "--html", html, m);
    if (html != NULL && rc == OK)
        rc = outputs_add_tmp(o, "--html", html, m);
    return rc;
}

/* Gates that nobody named, and the novels, are checked where they are found. */
static enum err check_files(struct eval *e, struct errmsg *m)
{
    enum err rc = add_outputs(e, m);
    if (rc == OK)
        rc = outputs_check(&e->outputs, "--model", e->o.model, m);
    if (rc == OK && strcmp(e->o.gates, "auto") != 0 &&
        strcmp(e->o.gates, "none") != 0)
        rc = outputs_check(&e->outputs, "--gates", e->o.gates, m);
    if (rc == OK && e->o.chats != NULL)
        rc = outputs_check(&e->outputs, "--chats", e->o.chats, m);
    for (size_t i = 0; i < e->o.text.n && rc == OK; i++)
        rc = outputs_check(&e->outputs, "--text", e->o.text.item[i], m);
    return rc;
}

static enum err load_model(struct eval *e, struct errmsg *m)
{
    struct model_options o = {.ops = ops_best(), .workers = e->file.workers};
    lab_model_options(&o, (uint32_t)e->o.context);
    enum err rc = model_load(&e->model, e->file.gguf, &o, m);
    if (rc != OK)
        return rc;
    uint32_t trained = model_info(e->model)->context_length;
    if (o.max_context > trained)
        return err_set(m, ERR_INVAL,
                       "--context: %u tokens and questions after them do not "
                       "fit the model's context of %u",
                       (uint32_t)e->o.context, trained);
    return OK;
}

static void name_model(struct eval *e)
{
    const char *slash = strrchr(e->o.model, '/');
    snprintf(e->name, sizeof(e->name), "%s",
             slash != NULL ? slash + 1 : e->o.model);
    char *end = strrchr(e->name, '.');
    if (end != NULL && strcmp(end, ".gguf") == 0)
        *end = '\0';
    e->name[utf8_complete_prefix(e->name, strlen(e->name))] = '\0';
}

/* The choices were read before the model, so that a wrong word is told at
 * once; now it is known whether there are gates. */
static enum err open_gates(struct eval *e, struct errmsg *m)
{
    char path[GATE_PATH_MAX];
    struct errmsg why = {""};
    enum err rc =
        model_find_gates(e->model, e->file.gguf, e->o.gates, path, &why);
    if (rc != OK)
        return err_set(m, rc, "--gates: %s", why.text);
    memcpy(e->gates, "none", sizeof("none"));
    if (!model_has_gates(e->model))
        return read_choices(e, KNOWN, m);
    fprintf(stderr, "gates: %s\n", path);
    rc = outputs_check(&e->outputs, "--gates", path, m);
    if (rc == OK)
        rc = hash_file(e->gates_sha256, path, m);
    memcpy(e->gates, e->gates_sha256, GATES_NAME - 1);
    return rc == OK ? read_choices(e, KNOWN | POLICY_LOG_BETA, m) : rc;
}

static enum err open_model(struct eval *e, struct errmsg *m)
{
    enum err rc = model_file_open(&e->file, e->o.model, e->o.threads, m);
    if (rc == OK)
        rc = hash_file(e->sha256, e->o.model, m);
    if (rc == OK)
        rc = load_model(e, m);
    return rc == OK ? open_gates(e, m) : rc;
}

/* The novels of a split, as deploy/texts.tsv assigns them. */
static enum err open_split(struct eval *e, struct errmsg *m)
{
    static const char *const files[][3] = {
        [SPLIT_TEST] = {"texts/persuasion.txt", "texts/northanger-abbey.txt"},
        [SPLIT_DEV] = {"texts/sense-and-sensibility.txt"}};
    char path[2][PATH_MAX], *list[2] = {path[0], path[1]};
    struct errmsg why = {""};
    enum err rc = OK;
    size_t n = 0;
    for (; files[e->o.split][n] != NULL && rc == OK; n++) {
        rc = config_cache_path(path[n], PATH_MAX, files[e->o.split][n], m);
        if (rc == OK)
            rc = outputs_check(&e->outputs, "--split", path[n], m);
    }
    if (rc != OK)
        return rc;
    rc = corpus_load(&e->corpus, e->file.tokenizer, list, n, &why);
    if (rc == ERR_NOTFOUND)
        return err_set(m, rc,
                       "%s; `make texts USE=%s` in the source tree fetches it, "
                       "or name a text with --text",
                       why.text, splits[e->o.split]);
    return rc == OK ? OK : err_set(m, rc, "%s", why.text);
}

/* "; passed by: 2 with less than 64 tokens before them, 1 empty", or nothing.
 */
static void list_passed(char out[PASSED_MAX], const struct eval *e)
{
    const struct chats_passed p = chats_passed(e->chats);
    char few[48], many[48];
    const struct {
        size_t n;
        const char *why;
    } list[] = {{p.n_short, few},
                {p.n_long, many},
                {p.n_empty, "empty"},
                {p.n_first, "with nothing before them"},
                {p.n_unread, "with an image, a NUL or other content that is no "
                             "text, before them or in them"},
                {p.n_apart, "that the template writes otherwise afterwards"}};
    size_t len = 0;
    snprintf(few, sizeof(few), "with less than %d tokens before them",
             CHATS_TOKENS_MIN);
    snprintf(many, sizeof(many), "with more than %u tokens before them",
             (uint32_t)e->o.context);
    out[0] = '\0';
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
        if (list[i].n > 0)
            len += (size_t)snprintf(out + len, PASSED_MAX - len, "%s%zu %s",
                                    len == 0 ? "; passed by: " : ", ",
                                    list[i].n, list[i].why);
}

/* As many of the answers as --docs says, the first ones. */
static enum err open_chats(struct eval *e, const atomic_bool *stop,
                           struct errmsg *m)
{
    const struct chats_options o = {.tokenizer = e->file.tokenizer,
                                    .prompt = e->file.prompt,
                                    .max_tokens = (uint32_t)e->o.context,
                                    .max_answers = (size_t)e->o.docs,
                                    .stop = stop};
    char passed[PASSED_MAX];
    if (e->file.prompt == NULL)
        return err_set(m, ERR_UNSUPPORTED,
                       "--chats: the model has no chat template that we know");
    enum err rc = chats_load(&e->chats, &o, e->o.chats, m);
    if (rc != OK)
        return rc;
    int64_t n = (int64_t)chats_count(e->chats);
    list_passed(passed, e);
    if (n == 0)
        return err_set(m, ERR_INVAL,
                       "%s: there is no answer to predict with %d to %u tokens "
                       "before it%s",
                       e->o.chats, CHATS_TOKENS_MIN, (uint32_t)e->o.context,
                       passed);
    e->o.docs = n;
    fprintf(stderr, "chats: %lld ", (long long)n);
    if (chats_left_out(e->chats) > 0)
        fprintf(stderr, "of %zu ", (size_t)n + chats_left_out(e->chats));
    fprintf(stderr, "answer%s%s\n", n == 1 ? "" : "s", passed);
    return OK;
}

static enum err open_texts(struct eval *e, const atomic_bool *stop,
                           struct errmsg *m)
{
    if (e->o.chats != NULL)
        return open_chats(e, stop, m);
    return e->o.text.n > 0 ? corpus_load(&e->corpus, e->file.tokenizer,
                                         e->o.text.item, e->o.text.n, m)
                           : open_split(e, m);
}

static enum err describe(struct eval *e, struct errmsg *m)
{
    int n = snprintf(
        e->identity, sizeof(e->identity),
        "version=%d model=%s texts=%s kv=%s sinks=%u recent=%u "
        "min_head=%u",
        e->chats != NULL ? CHATS_VERSION : FIGURES_VERSION, e->sha256,
        e->chats != NULL ? chats_hash(e->chats) : corpus_hash(e->corpus),
        kv_type_name((enum kv_type)e->o.kv_type), (uint32_t)e->o.sinks,
        (uint32_t)e->o.recent, (uint32_t)e->o.min_tokens_per_head);
    return n > 0 && (size_t)n < sizeof(e->identity)
               ? OK
               : err_set(m, ERR_INTERNAL, "the settings are too long");
}

static enum err run(struct eval *e, const atomic_bool *stop, struct errmsg *m)
{
    uint32_t n_tokens = (uint32_t)e->o.context;
    struct suite s = {.cells = {.task = e->task,
                                .n_tasks = e->n_tasks,
                                .choice = e->choices.choice,
                                .n_choices = e->choices.n,
                                .n_docs = (uint32_t)e->o.docs,
                                .against = e->choices.against,
                                .seed = (uint64_t)e->o.seed,
                                .model = e->name,
                                .gates = e->gates,
                                .split = e->o.text.n > 0 || e->chats != NULL
                                             ? "own"
                                             : splits[e->o.split],
                                .context = n_tokens,
                                .mode = (enum lab_mode)e->o.mode},
                      .lab = {.model = e->model,
                              .workers = e->file.workers,
                              .kv_type = (enum kv_type)e->o.kv_type,
                              .mode = (enum lab_mode)e->o.mode,
                              .n_tokens = n_tokens,
                              .needs = choices_needs(&e->choices)},
                      .document = {.tokenizer = e->file.tokenizer,
                                   .prompt = e->file.prompt,
                                   .corpus = e->corpus,
                                   .chats = e->chats,
                                   .n_tokens = n_tokens,
                                   .seed = (uint64_t)e->o.seed},
                      .identity = e->identity,
                      .gates = e->gates_sha256,
                      .json = e->o.json,
                      .html = e->o.html,
                      .answers = e->o.answers,
                      .table = stdout,
                      .progress = stderr,
                      .stop = stop};
    return suite_run(&s, m);
}

static void close_all(struct eval *e)
{
    chats_free(e->chats);
    corpus_free(e->corpus);
    model_free(e->model);
    model_file_close(&e->file);
    flags_fini(&e->o, &flags);
}

static int fail(int status, const struct errmsg *m)
{
    fprintf(stderr, "ebb eval: %s\n", m->text);
    return status;
}

int eval_help(void)
{
    struct buf text = {0};
    int status = EVAL_FAILED;
    if (flags_put_help(&text, &flags) == OK) {
        fputs(text.data, stdout);
        status = EVAL_DONE;
    }
    buf_fini(&text);
    return status;
}

/* What can be said without loading anything. */
static enum err check(struct eval *e, struct errmsg *m)
{
    if (e->o.model == NULL)
        return err_set(m, ERR_INVAL, "--model FILE is needed");
    if (e->o.answers != NULL && e->o.json != NULL)
        return err_set(m, ERR_INVAL,
                       "--answers is for a run without --json, which asks "
                       "nothing that was asked before");
    bool may_have_gates = strcmp(e->o.gates, "none") != 0;
    enum err rc = read_tasks(e, m);
    if (rc == OK)
        rc = check_files(e, m);
    name_model(e);
    return rc == OK ? read_choices(
                          e, KNOWN | (may_have_gates ? POLICY_LOG_BETA : 0), m)
                    : rc;
}

int eval_command(int argc, char *const *argv, const atomic_bool *stop)
{
    struct eval e = {.n_tasks = 0};
    struct errmsg m = {""};
    bool wants_help = false;
    if (flags_parse(&e.o, &wants_help, &flags, argc, argv, &m) != OK)
        return fail(EVAL_USAGE, &m);
    if (wants_help)
        return eval_help();
    if (check(&e, &m) != OK) {
        flags_fini(&e.o, &flags);
        return fail(EVAL_USAGE, &m);
    }
    enum err rc = open_model(&e, &m);
    if (rc == OK)
        rc = open_texts(&e, stop, &m);
    if (rc == OK)
        rc = describe(&e, &m);
    if (rc == OK)
        rc = run(&e, stop, &m);
    bool goes_on = e.o.json != NULL;
    close_all(&e);
    if (rc == ERR_CANCELLED)
        fprintf(stderr, "ebb eval: stopped; %s\n",
                goes_on ? "the same command goes on from here"
                        : "without --json nothing is kept");
    else if (rc != OK)
        return fail(EVAL_FAILED, &m);
    return rc == OK ? EVAL_DONE : EVAL_FAILED;
}
