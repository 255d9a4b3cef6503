#include "bench/eval/document.h"

#include <string.h>

#include "bench/eval/document_internal.h"

/* The gate: below it the model fails even with everything in its cache, and
 * policies would be compared by noise (docs/design, evaluation 3.1). */
static const struct {
    struct task_info info;
    maker_fn make;
} tasks[TASK_COUNT] = {
    [TASK_A] = {{"A", "the next 256 tokens of a book", false, 0},
                maker_next_text},
    [TASK_B1] = {{"B1", "one number told in a text", true, 0.6}, maker_passkey},
    [TASK_B2] = {{"B2", "eight facts told in a text", true, 0.6}, maker_facts},
    [TASK_F] = {{"F", "four passages of a text that come again", false, 0},
                maker_copies},
};

const struct task_info *task_info(enum task t)
{
    return &tasks[t].info;
}

enum err task_find(enum task *out, const char *name, size_t n)
{
    for (int t = 0; t < TASK_COUNT; t++)
        if (strlen(tasks[t].info.name) == n &&
            memcmp(tasks[t].info.name, name, n) == 0) {
            *out = (enum task)t;
            return OK;
        }
    return ERR_NOTFOUND;
}

/* Seeds of task and document are hashed in one after the other, so that no
 * two streams are shifted copies of each other. */
static uint64_t seed_for(uint64_t seed, uint64_t task, uint64_t i)
{
    uint64_t mixed = rng_splitmix(&seed) ^ task;
    mixed = rng_splitmix(&mixed) ^ i;
    return rng_splitmix(&mixed);
}

enum err document_deal(const struct document_options *o, enum task t,
                       size_t *n_docs)
{
    return corpus_deal(o->corpus, o->n_tokens + DOCUMENT_TAIL,
                       seed_for(o->seed, (uint64_t)t, UINT64_MAX), n_docs);
}

enum err document_make(struct document *out, const struct document_options *o,
                       enum task t, uint32_t i, struct errmsg *m)
{
    struct document d = {0};
    struct errmsg why = {""};
    struct maker k = {.o = o, .window = corpus_window(o->corpus, i), .m = &why};
    rng_seed(&k.rng, seed_for(o->seed, (uint64_t)t, i));
    enum err rc = tasks[t].make(&d, &k);
    if (rc != OK) {
        document_fini(&d);
        return err_set(m, rc, "cannot make document %u of task %s: %s", i,
                       tasks[t].info.name,
                       why.text[0] != '\0' ? why.text : err_name(rc));
    }
    *out = d;
    return OK;
}

void document_fini(struct document *d)
{
    tokens_fini(&d->prompt);
    for (uint32_t i = 0; i < DOCUMENT_PROBES_MAX; i++)
        tokens_fini(&d->probe[i].ids);
    *d = (struct document){0};
}

uint32_t document_n_scored(const struct document *d)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < d->n_probes; i++)
        sum += (uint32_t)d->probe[i].ids.n - d->probe[i].first;
    return sum;
}

enum err maker_append(struct tokens *out, const int32_t *id, size_t n)
{
    enum err rc = OK;
    for (size_t i = 0; i < n && rc == OK; i++)
        rc = tokens_push(out, id[i]);
    return rc;
}

enum err maker_start_text(struct document *d, const struct maker *k)
{
    if (!tokenizer_adds_bos(k->o->tokenizer))
        return OK;
    d->n_head = 1;
    return tokens_push(&d->prompt, tokenizer_bos(k->o->tokenizer));
}
