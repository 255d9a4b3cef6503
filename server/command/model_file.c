#include "server/command/model_file.h"

/* Without a template that we can render, commands write chats in plain
 * words. */
static enum err read_prompt(struct model_file *f, struct errmsg *m)
{
    enum err rc = prompt_from_gguf(&f->prompt, f->gguf, f->tokenizer, m);
    return rc == ERR_UNSUPPORTED || rc == ERR_INVAL ? OK : rc;
}

enum err model_file_open(struct model_file *out, const char *path,
                         int64_t n_threads, struct errmsg *m)
{
    struct model_file f = {0};
    int n = n_threads > 0 ? (int)n_threads : workers_cpus();
    enum err rc = workers_new(&f.workers, n, m);
    if (rc == OK)
        rc = gguf_open(&f.gguf, path, m);
    if (rc == OK)
        rc = tokenizer_from_gguf(&f.tokenizer, f.gguf, m);
    if (rc == OK)
        rc = read_prompt(&f, m);
    if (rc != OK) {
        model_file_close(&f);
        return rc;
    }
    *out = f;
    return OK;
}

void model_file_close(struct model_file *f)
{
    prompt_free(f->prompt);
    tokenizer_free(f->tokenizer);
    gguf_close(f->gguf);
    workers_free(f->workers);
    *f = (struct model_file){0};
}
