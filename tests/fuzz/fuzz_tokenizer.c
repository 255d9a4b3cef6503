/* Fuzz target: any bytes as text, and as a vocabulary. The first byte chooses:
 * bit 0 text or vocabulary, bits 1-2 the split rule, bit 3 special tokens.
 * Built and run by `make fuzz`.
 *
 * As text: what comes back from the ids must be the text, repaired and, where
 * the rule says so, normalised; plain text must give no special token. As a
 * vocabulary: tokens up to an empty line, then merges, one a line; it must be
 * refused with a sentence or work. */
#include "runtime/text/detok.h"
#include "runtime/text/nfc.h"
#include "tests/unit/runtime/text/tiny_vocab.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char *const rules[] = {"gpt-2", "smollm", "qwen2", "llama-bpe"};

static struct tokenizer *fixed(unsigned rule)
{
    static struct tokenizer *made[4];
    if (made[rule] != NULL)
        return made[rule];
    struct tiny *v = tiny_new(rules[rule]);
    (void)tiny_merge(v, " ", " ");
    (void)tiny_merge(v, "  ", "  ");
    (void)tiny_merge(v, "e", "r");
    (void)tiny_merge(v, " ", "er");
    (void)tiny_merge(v, "\xCC", "\x81");
    (void)tiny_merge(v, "\n", "\n");
    (void)tiny_merge(v, "e", "\xCC\x81");
    (void)tiny_add(v, "<|e|>", TOKEN_CONTROL);
    (void)tiny_add(v, "<|e|>+", TOKEN_CONTROL);
    (void)tiny_add(v, "\u00E9!", TOKEN_USER_DEFINED);
    return made[rule] = tiny_take(v);
}

static void check(enum err rc)
{
    if (rc != OK)
        abort();
}

static void as_text(unsigned rule, bool special, const char *s, size_t n)
{
    const struct tokenizer *t = fixed(rule);
    struct tokens ids = {0};
    struct buf text = {0}, want = {0}, got = {0};
    struct detok d;
    check(
        tokenizer_encode(t, s, n, special ? TOKENIZER_PARSE_SPECIAL : 0, &ids));
    for (size_t i = 0; i < ids.n; i++) {
        if (ids.id[i] < 0 || (size_t)ids.id[i] >= tokenizer_n_vocab(t))
            abort();
        if (!special && tokenizer_is_special(t, ids.id[i]))
            abort();
    }
    if (!special) {
        detok_init(&d, t);
        check(utf8_append_repaired(&text, s, n));
        if (rule == 2)
            check(nfc_append(&want, text.data, text.len));
        else
            check(buf_append(&want, text.data, text.len));
        for (size_t i = 0; i < ids.n; i++)
            check(detok_push(&d, ids.id[i], &got));
        check(detok_flush(&d, &got));
        if (got.len != want.len ||
            (got.len > 0 && memcmp(got.data, want.data, got.len) != 0))
            abort();
    }
    tokens_fini(&ids);
    buf_fini(&text);
    buf_fini(&want);
    buf_fini(&got);
}

/* Lines of s up to `max`; *used is where reading stopped. */
static size_t lines(struct gguf_str *out, size_t max, const char *s, size_t n,
                    size_t *used)
{
    size_t k = 0, at = *used;
    while (at < n && k < max) {
        const char *end = memchr(s + at, '\n', n - at);
        size_t len = end != NULL ? (size_t)(end - s) - at : n - at;
        out[k] = (struct gguf_str){s + at, len};
        at += len + 1;
        if (len == 0)
            break;
        k++;
    }
    *used = at < n ? at : n;
    return k;
}

static void as_vocabulary(unsigned rule, const char *s, size_t n)
{
    static struct gguf_str token[512], merge[512];
    static int32_t type[512];
    struct errmsg m = {""};
    struct tokenizer *t = NULL;
    struct tokens ids = {0};
    size_t used = 0;
    struct tokenizer_spec spec = {.pre = {rules[rule], strlen(rules[rule])},
                                  .token = token,
                                  .type = type,
                                  .merge = merge,
                                  .bos = -1,
                                  .eos = n > 0 ? s[0] : -1,
                                  .eot = -1,
                                  .eom = -1};
    spec.n_tokens = lines(token, 512, s, n, &used);
    spec.n_merges = lines(merge, 512, s, n, &used);
    for (size_t i = 0; i < spec.n_tokens; i++)
        type[i] = token[i].s[0] == '<' ? TOKEN_CONTROL : TOKEN_NORMAL;
    if (tokenizer_new(&t, &spec, &m) != OK) {
        if (t != NULL || m.text[0] == '\0')
            abort();
        return;
    }
    check(tokenizer_encode(t, s, n, TOKENIZER_PARSE_SPECIAL, &ids));
    for (size_t i = 0; i < ids.n; i++)
        if (ids.id[i] < 0 || (size_t)ids.id[i] >= spec.n_tokens)
            abort();
    tokens_fini(&ids);
    tokenizer_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n == 0)
        return 0;
    unsigned rule = data[0] >> 1 & 3;
    if ((data[0] & 1) == 0)
        as_text(rule, (data[0] >> 3 & 1) != 0, (const char *)data + 1, n - 1);
    else
        as_vocabulary(rule, (const char *)data + 1, n - 1);
    return 0;
}
