/* Fuzz target: any bytes as the body of a request. The first byte says which
 * route. Built and run by `make fuzz`. */
#include <stdlib.h>
#include <string.h>

#include "server/chat.h"
#include "server/completions.h"
#include "server/params.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { VOCAB = 4 };

static struct prompt *make_prompt(struct tokenizer **tokenizer)
{
    static const char *const names[VOCAB] = {"a", "b", "aa", "<|end|>"};
    struct gguf_str text[VOCAB];
    const int32_t type[VOCAB] = {TOKEN_NORMAL, TOKEN_NORMAL, TOKEN_NORMAL,
                                 TOKEN_CONTROL};
    for (int i = 0; i < VOCAB; i++)
        text[i] = (struct gguf_str){names[i], strlen(names[i])};
    const struct tokenizer_spec spec = {.pre = {"gpt-2", 5},
                                        .token = text,
                                        .type = type,
                                        .n_tokens = VOCAB,
                                        .bos = -1,
                                        .eos = 3,
                                        .eot = -1,
                                        .eom = -1};
    static const char source[] =
        "{% for m in messages %}{{ m.role }}{{ m.content }}"
        "{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}"
        "<|end|>{% endfor %}";
    struct prompt *p = NULL;
    if (tokenizer_new(tokenizer, &spec, NULL) != OK)
        abort();
    const struct prompt_spec chat = {
        .tokenizer = *tokenizer, .chat_template = {source, sizeof(source) - 1}};
    if (prompt_new(&p, &chat, NULL) != OK)
        abort();
    return p;
}

/* What a request that was let through must look like. */
static void check(const struct params *p, const struct gen_request *r)
{
    if (!(p->gen.temperature >= 0 && p->gen.temperature <= 2) ||
        !(p->gen.top_p >= 0 && p->gen.top_p <= 1) ||
        !(p->gen.repetition_penalty > 0) || p->gen.top_k < 0)
        abort();
    for (uint32_t i = 0; i < r->n_bias; i++)
        if (r->bias[i].token < 0 || r->bias[i].token >= VOCAB)
            abort();
    if (p->n_pins > PARAMS_PINS_MAX)
        abort();
}

static void read_request(const struct prompt *p, cJSON *body,
                         enum params_route route)
{
    struct params params;
    struct gen_request r = {0};
    struct tokens tokens = {0};
    struct api_error e = {0};
    struct prompt_chat chat = {0};
    const struct forget_options forget = {.rules =
                                              forget_default_rules(true, true),
                                          .min_head = 20,
                                          .n_sinks = 4,
                                          .n_recent = 16};
    const struct params_server server = {.n_vocab = VOCAB,
                                         .max_context = 2048,
                                         .forget = &forget,
                                         .has_gates = true};
    enum err rc = params_read(&params, &r, body, route, &server, &e);
    bool accepted = rc == OK;
    if (accepted)
        check(&params, &r);
    else if (e.status < 400)
        abort();
    e.status = 0;
    if (route == PARAMS_TEXT) {
        rc = completions_prompt(&tokens, body, p, VOCAB, &e);
    } else {
        rc = chat_messages(&chat.messages, body, &e);
        chat.add_generation_prompt = true;
        chat.pin = params.pin;
        chat.n_pin = accepted ? params.n_pins : 0;
        if (rc == OK && prompt_from_chat(p, &chat, &tokens, &e.message) != OK)
            e.status = 400;
    }
    if (rc != OK && e.status < 400)
        abort();
    for (size_t i = 0; i < tokens.n; i++)
        if (tokens.id[i] < 0 || tokens.id[i] >= VOCAB)
            abort();
    tokens_fini(&tokens);
    gen_request_fini(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct tokenizer *tokenizer;
    static struct prompt *prompt;
    cJSON *body = NULL;
    if (!prompt)
        prompt = make_prompt(&tokenizer);
    if (n == 0 || json_parse(&body, (const char *)data + 1, n - 1, NULL) != OK)
        return 0;
    if (cJSON_IsObject(body))
        read_request(prompt, body, data[0] & 1 ? PARAMS_CHAT : PARAMS_TEXT);
    cJSON_Delete(body);
    return 0;
}
