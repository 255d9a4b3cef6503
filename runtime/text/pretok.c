#define PCRE2_CODE_UNIT_WIDTH 8
#include "runtime/text/pretok.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

/* What goes inside [...]. White space is Unicode's property of that name, as
 * in the reference; PCRE2's \s has U+180E too. Letters and numbers are those
 * of Unicode 16 (Oniguruma) and digits those of Unicode 17 (Rust), where the
 * oldest PCRE2 that we build with knows Unicode 14. */
#define SPACE                                                                  \
    "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}"           \
    "\\x{2028}-\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define MORE_LETTERS                                                           \
    "\\x{1C89}-\\x{1C8A}\\x{A7CB}-\\x{A7CD}\\x{A7DA}-\\x{A7DC}"                \
    "\\x{105C0}-\\x{105F3}\\x{10D4A}-\\x{10D65}\\x{10D6F}-\\x{10D85}"          \
    "\\x{10EC2}-\\x{10EC4}\\x{1123F}-\\x{11240}\\x{11380}-\\x{11389}"          \
    "\\x{1138B}\\x{1138E}\\x{11390}-\\x{113B5}\\x{113B7}\\x{113D1}"            \
    "\\x{113D3}\\x{11BC0}-\\x{11BE0}\\x{11F02}\\x{11F04}-\\x{11F10}"           \
    "\\x{11F12}-\\x{11F33}\\x{1342F}\\x{13441}-\\x{13446}"                     \
    "\\x{13460}-\\x{143FA}\\x{16100}-\\x{1611D}\\x{16D40}-\\x{16D6C}"          \
    "\\x{18CFF}\\x{1B132}\\x{1B155}\\x{1DF25}-\\x{1DF2A}"                      \
    "\\x{1E030}-\\x{1E06D}\\x{1E4D0}-\\x{1E4EB}\\x{1E5D0}-\\x{1E5ED}"          \
    "\\x{1E5F0}\\x{2B739}\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}"
#define MORE_NUMBERS                                                           \
    "\\x{10D40}-\\x{10D49}\\x{116D0}-\\x{116E3}\\x{11BF0}-\\x{11BF9}"          \
    "\\x{11F50}-\\x{11F59}\\x{16130}-\\x{16139}\\x{16D70}-\\x{16D79}"          \
    "\\x{1CCF0}-\\x{1CCF9}\\x{1D2C0}-\\x{1D2D3}\\x{1E4F0}-\\x{1E4F9}"          \
    "\\x{1E5F1}-\\x{1E5FA}"
#define MORE_DIGITS                                                            \
    "\\x{10D40}-\\x{10D49}\\x{116D0}-\\x{116E3}\\x{11BF0}-\\x{11BF9}"          \
    "\\x{11DE0}-\\x{11DE9}\\x{11F50}-\\x{11F59}\\x{16130}-\\x{16139}"          \
    "\\x{16D70}-\\x{16D79}\\x{16FF4}-\\x{16FF6}\\x{1CCF0}-\\x{1CCF9}"          \
    "\\x{1D2C0}-\\x{1D2D3}\\x{1E4F0}-\\x{1E4F9}\\x{1E5F1}-\\x{1E5FA}"
#define LETTER "\\p{L}" MORE_LETTERS
#define NUMBER "\\p{N}" MORE_NUMBERS
#define OTHER "[^" SPACE LETTER NUMBER "]"

/* White space up to the last one before a word, which the word takes along;
 * else all of it. */
#define SPACES "[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+"

#define GPT2                                                                   \
    "'s|'t|'re|'ve|'m|'ll|'d"                                                  \
    "| ?[" LETTER "]+| ?[" NUMBER "]+| ?" OTHER "+|" SPACES

/* Llama 3 and Qwen2 differ in how many digits make a word. */
#define LLAMA3(digits)                                                         \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)"                                             \
    "|[^\\r\\n" LETTER NUMBER "]?[" LETTER "]+|[" NUMBER "]" digits            \
    "| ?" OTHER "+[\\r\\n]*|[" SPACE "]*[\\r\\n]+|" SPACES

struct rule {
    const char *name;
    const char *words;
    bool single_digits, nfc, ignore_merges;
};

static const struct rule rules[] = {
    {"gpt-2", GPT2, false, false, false},
    {"smollm", GPT2, true, false, false},
    {"llama-bpe", LLAMA3("{1,3}"), false, false, true},
    {"qwen2", LLAMA3(""), false, true, false},
};

struct pretok {
    const struct rule *rule;
    pcre2_code *words;
    pcre2_code *digit; /* NULL unless digits stand alone */
};

static enum err compile(pcre2_code **out, const char *pattern, uint32_t options,
                        struct errmsg *m)
{
    int code = 0;
    PCRE2_SIZE at = 0;
    *out = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                         PCRE2_UTF | PCRE2_UCP | options, &code, &at, NULL);
    if (*out == NULL) {
        char text[128] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof(text));
        return err_set(m, ERR_INTERNAL,
                       "PCRE2 refuses a split rule at byte %zu: %s", at, text);
    }
    /* Without just-in-time code (no support, no executable memory) the
     * interpreter gives the same words, only later. */
    (void)pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE);
    return OK;
}

static const struct rule *find_rule(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
        if (strlen(rules[i].name) == n && memcmp(rules[i].name, name, n) == 0)
            return &rules[i];
    return NULL;
}

enum err pretok_new(struct pretok **out, const char *name, size_t n,
                    struct errmsg *m)
{
    *out = NULL;
    const struct rule *rule = n > 0 ? find_rule(name, n) : NULL;
    if (rule == NULL)
        return err_set(m, ERR_UNSUPPORTED,
                       "tokenizer.ggml.pre is \"%.*s\": this program knows "
                       "gpt-2, llama-bpe, qwen2 and smollm",
                       (int)(n < 64 ? n : 64), n > 0 ? name : "");
    struct pretok *p = calloc(1, sizeof(*p));
    if (p == NULL)
        return err_set(m, ERR_NOMEM, "no memory for the tokenizer");
    p->rule = rule;
    /* Anchored: words follow each other, and every character belongs to one. */
    enum err rc = compile(&p->words, rule->words, PCRE2_ANCHORED, m);
    if (rc == OK && rule->single_digits)
        rc = compile(&p->digit, "[\\p{N}" MORE_DIGITS "]", 0, m);
    if (rc != OK) {
        pretok_free(p);
        return rc;
    }
    *out = p;
    return OK;
}

void pretok_free(struct pretok *p)
{
    if (p == NULL)
        return;
    pcre2_code_free(p->words);
    pcre2_code_free(p->digit);
    free(p);
}

bool pretok_wants_nfc(const struct pretok *p)
{
    return p->rule->nfc;
}

bool pretok_ignores_merges(const struct pretok *p)
{
    return p->rule->ignore_merges;
}

enum err pretok_scan_init(struct pretok_scan *it, const struct pretok *p)
{
    memset(it, 0, sizeof(*it));
    it->p = p;
    it->match = pcre2_match_data_create(1, NULL);
    it->limit = pcre2_match_context_create(NULL);
    if (it->match == NULL || it->limit == NULL)
        return ERR_NOMEM;
    /* The rules have no nested repeats: work grows with the length of the
     * text and needs no depth, so the count of steps is not what stops a long
     * run of spaces (the default would, at ten million). */
    pcre2_set_match_limit(it->limit, UINT32_MAX);
    return OK;
}

void pretok_scan_fini(struct pretok_scan *it)
{
    pcre2_match_data_free(it->match);
    pcre2_match_context_free(it->limit);
    it->match = NULL;
    it->limit = NULL;
}

void pretok_scan_start(struct pretok_scan *it, const char *s, size_t n)
{
    it->s = s;
    it->n = n;
    it->at = 0;
    it->piece_end = 0;
}

/* First match at or behind it->at and before `end`. NOTFOUND: none. */
static enum err match(struct pretok_scan *it, const pcre2_code *code,
                      size_t end, size_t *m_begin, size_t *m_end)
{
    uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
    int rc = pcre2_match(code, (PCRE2_SPTR)it->s, end, it->at, options,
                         it->match, it->limit);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, (PCRE2_SPTR)it->s, end, it->at,
                         options | PCRE2_NO_JIT, it->match, it->limit);
    if (rc == PCRE2_ERROR_NOMATCH)
        return ERR_NOTFOUND;
    if (rc == PCRE2_ERROR_NOMEMORY || rc == PCRE2_ERROR_HEAPLIMIT)
        return ERR_NOMEM;
    if (rc < 0)
        return ERR_INTERNAL;
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(it->match);
    *m_begin = at[0];
    *m_end = at[1];
    return OK;
}

/* A new piece begins at it->at: one digit, or all up to the next digit. */
static enum err next_piece(struct pretok_scan *it)
{
    if (it->p->digit == NULL) {
        it->piece_end = it->n;
        return OK;
    }
    size_t begin = it->n, end = it->n;
    enum err rc = match(it, it->p->digit, it->n, &begin, &end);
    if (rc == ERR_NOTFOUND)
        rc = OK;
    it->piece_end = begin == it->at ? end : begin;
    return rc;
}

bool pretok_scan_next(struct pretok_scan *it, size_t *begin, size_t *end,
                      enum err *rc)
{
    *rc = OK;
    if (it->at == it->n)
        return false;
    if (it->at == it->piece_end)
        *rc = next_piece(it);
    if (*rc == OK)
        *rc = match(it, it->p->words, it->piece_end, begin, end);
    /* Every character belongs to a word: no match is a fault of a rule. */
    if (*rc == OK && (*begin != it->at || *end <= it->at))
        *rc = ERR_INTERNAL;
    if (*rc == ERR_NOTFOUND)
        *rc = ERR_INTERNAL;
    if (*rc != OK)
        return false;
    it->at = *end;
    return true;
}
