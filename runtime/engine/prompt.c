#include "runtime/engine/prompt.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "runtime/text/chat.h"

struct prompt {
    const struct tokenizer *tokenizer;
    struct chat_template *chat; /* NULL: the model knows no chats */
};

/* The text of a token, terminated; *out is NULL when there is none. */
static enum err copy_token(char **out, const struct tokenizer *t, int32_t id)
{
    size_t n = 0;
    const char *s = id >= 0 ? tokenizer_token_bytes(t, id, &n) : NULL;
    *out = NULL;
    if (!s)
        return OK;
    *out = strndup(s, n);
    return *out ? OK : ERR_NOMEM;
}

/* A model without a template whose vocabulary has the marks of ChatML was
 * trained on it. */
static bool has_chatml(const struct tokenizer *t)
{
    return tokenizer_find(t, "<|im_start|>", 12) >= 0 &&
           tokenizer_find(t, "<|im_end|>", 10) >= 0;
}

static enum err load_template(struct prompt *p, const struct prompt_spec *spec,
                              struct errmsg *m)
{
    char *bos = NULL, *eos = NULL;
    enum err rc = copy_token(&bos, p->tokenizer, tokenizer_bos(p->tokenizer));
    if (rc == OK)
        rc = copy_token(&eos, p->tokenizer, tokenizer_eos(p->tokenizer));
    if (rc == OK) {
        const struct chat_spec chat = {.text = spec->chat_template.s,
                                       .n_text = spec->chat_template.n,
                                       .bos = bos,
                                       .eos = eos};
        rc = chat_template_new(&p->chat, &chat, m);
    } else {
        err_set(m, rc, "no memory for the chat template");
    }
    free(bos);
    free(eos);
    return rc;
}

enum err prompt_new(struct prompt **out, const struct prompt_spec *spec,
                    struct errmsg *m)
{
    struct prompt *p = calloc(1, sizeof(*p));
    enum err rc = OK;
    if (!p)
        return err_set(m, ERR_NOMEM, "no memory for the chat template");
    p->tokenizer = spec->tokenizer;
    if (spec->chat_template.s || has_chatml(spec->tokenizer))
        rc = load_template(p, spec, m);
    if (rc != OK) {
        prompt_free(p);
        return rc;
    }
    *out = p;
    return OK;
}

enum err prompt_from_gguf(struct prompt **out, const struct gguf *g,
                          const struct tokenizer *t, struct errmsg *m)
{
    struct prompt_spec spec = {.tokenizer = t};
    struct errmsg inner = {0};
    enum err rc =
        gguf_string(g, "tokenizer.chat_template", &spec.chat_template, m);
    if (rc != OK && rc != ERR_NOTFOUND)
        return rc;
    rc = prompt_new(out, &spec, &inner);
    return rc == OK ? OK
                    : err_set(m, rc, "tokenizer.chat_template: %s", inner.text);
}

void prompt_free(struct prompt *p)
{
    if (!p)
        return;
    chat_template_free(p->chat);
    free(p);
}

static enum err encode(const struct prompt *p, const struct jinja_output *text,
                       struct tokens *out)
{
    struct text_segment *seg = calloc(text->n_segments + 1, sizeof(*seg));
    if (!seg)
        return ERR_NOMEM;
    for (size_t i = 0; i < text->n_segments; i++) {
        const struct jinja_segment *s = &text->segments[i];
        seg[i] = (struct text_segment){.s = text->text.data + s->offset,
                                       .n = s->length,
                                       .special = s->is_template,
                                       .marked = s->is_marked};
    }
    /* No BOS but the template's own, as in transformers: most templates begin
     * with it, and a second one spoils the answers. */
    enum err rc =
        tokenizer_encode_segments(p->tokenizer, seg, text->n_segments, 0, out);
    free(seg);
    return rc;
}

enum err prompt_from_chat(const struct prompt *p,
                          const struct prompt_chat *chat, struct tokens *out,
                          struct errmsg *m)
{
    struct jinja_output text = {0};
    const struct chat_options o = {
        .tools = chat->tools,
        .kwargs = chat->kwargs,
        .add_generation_prompt = chat->add_generation_prompt,
        .continue_final_message = chat->continue_final_message,
        .mark = chat->pin,
        .n_mark = chat->n_pin,
        .now = clock_wall_s(),
    };
    if (!p->chat)
        return err_set(m, ERR_UNSUPPORTED,
                       "This model has no chat template; use "
                       "/v1/completions.");
    enum err rc = chat_render(&text, p->chat, chat->messages, &o, m);
    if (rc != OK)
        return rc;
    rc = encode(p, &text, out);
    jinja_output_fini(&text);
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
