#include "runtime/engine/prompt.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"

/* Renders ChatML: <|im_start|>role\ncontent<|im_end|>\n. */
struct prompt {
    const struct tokenizer *tokenizer;
    bool is_chatml; /* the model's template is one */
};

static const char open_mark[] = "<|im_start|>", close_mark[] = "<|im_end|>\n";

enum err prompt_new(struct prompt **out, const struct gguf *g,
                    const struct tokenizer *t, struct errmsg *m)
{
    struct gguf_str text = {0};
    struct prompt *p = calloc(1, sizeof(*p));
    if (!p)
        return err_set(m, ERR_NOMEM, "no memory for the chat template");
    p->tokenizer = t;
    if (gguf_string(g, "tokenizer.chat_template", &text, NULL) == OK)
        p->is_chatml = memmem(text.s, (size_t)text.n, open_mark,
                              sizeof(open_mark) - 1) != NULL;
    *out = p;
    return OK;
}

void prompt_free(struct prompt *p)
{
    free(p);
}

static void put(struct text_segment *seg, size_t *n, const char *s,
                bool special)
{
    seg[(*n)++] = (struct text_segment){s, strlen(s), special};
}

enum err prompt_from_chat(const struct prompt *p,
                          const struct prompt_chat *chat, struct tokens *out,
                          struct errmsg *m)
{
    size_t n = 0, n_messages = (size_t)cJSON_GetArraySize(chat->messages);
    if (!p->is_chatml)
        return err_set(m, ERR_UNSUPPORTED,
                       "this model has no chat template that we can render");
    struct text_segment *seg = calloc(5 * n_messages + 1, sizeof(*seg));
    if (!seg)
        return err_set(m, ERR_NOMEM, "no memory for %zu messages", n_messages);
    for (const cJSON *x = chat->messages->child; x; x = x->next) {
        put(seg, &n, open_mark, true);
        put(seg, &n, json_get(x, "role")->valuestring, true);
        put(seg, &n, "\n", true);
        put(seg, &n, json_get(x, "content")->valuestring, false);
        if (x->next || !chat->continue_final_message)
            put(seg, &n, close_mark, true);
    }
    if (chat->add_generation_prompt)
        put(seg, &n, "<|im_start|>assistant\n", true);
    enum err rc =
        tokenizer_encode_segments(p->tokenizer, seg, n, TOKENIZER_ADD_BOS, out);
    free(seg);
    return rc == OK ? OK : err_set(m, rc, "cannot tokenize the chat");
}

enum err prompt_from_text(const struct prompt *p, const char *text, size_t n,
                          struct tokens *out, struct errmsg *m)
{
    enum err rc =
        tokenizer_encode(p->tokenizer, text, n,
                         TOKENIZER_PARSE_SPECIAL | TOKENIZER_ADD_BOS, out);
    return rc == OK ? OK
                    : err_set(m, rc, "cannot tokenize a text of %zu bytes", n);
}

int32_t prompt_start_token(const struct prompt *p)
{
    int32_t bos = tokenizer_bos(p->tokenizer);
    return bos >= 0 ? bos : tokenizer_eos(p->tokenizer);
}
