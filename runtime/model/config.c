#include "runtime/model/model_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

enum {
    LAYERS_MAX = 4096,
    HEADS_MAX = 4096,
    EMBD_MAX = 1 << 20,
    FF_MAX = 1 << 22,
    CONTEXT_MAX = 1 << 28,
    KEY_BYTES = 128
};

/* The keys below "<arch>." that we read, or that change nothing for us. Any
 * other one may change what the model computes. */
static const char *const known_keys[] = {
    "attention.causal",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "expert_count",
    "expert_used_count",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "tensor_data_layout",
    "use_parallel_residual",
    "vocab_size",
};

struct reader {
    const struct gguf *g;
    const char *arch;
    struct errmsg *m;
};

static const char *full_key(char buf[KEY_BYTES], const struct reader *r,
                            const char *key)
{
    snprintf(buf, KEY_BYTES, "%s.%s", r->arch, key);
    return buf;
}

/* A count in [min, max]; a missing key gives *dflt, or is an error when dflt
 * is NULL. */
static enum err read_count(const struct reader *r, const char *key,
                           const uint32_t *dflt, uint32_t min, uint32_t max,
                           uint32_t *out)
{
    char full[KEY_BYTES];
    full_key(full, r, key);
    struct errmsg why;
    enum err rc = gguf_u32(r->g, full, out, &why);
    if (rc == ERR_NOTFOUND && dflt) {
        *out = *dflt;
        return OK;
    }
    if (rc == ERR_NOTFOUND)
        return err_set(r->m, ERR_INVAL, "the model file has no %s", full);
    if (rc != OK)
        return err_set(r->m, rc, "%s", why.text);
    if (*out < min || *out > max)
        return err_set(r->m, ERR_INVAL,
                       "%s is %u; it must be between %u and %u", full, *out,
                       min, max);
    return OK;
}

static enum err read_float(const struct reader *r, const char *key, float dflt,
                           float min, float max, float *out)
{
    char full[KEY_BYTES];
    full_key(full, r, key);
    struct errmsg why;
    enum err rc = gguf_f32(r->g, full, out, &why);
    if (rc == ERR_NOTFOUND) {
        *out = dflt;
        return OK;
    }
    if (rc != OK)
        return err_set(r->m, rc, "%s", why.text);
    if (!(*out >= min && *out <= max))
        return err_set(r->m, ERR_INVAL,
                       "%s is %g; it must be between %g and %g", full,
                       (double)*out, (double)min, (double)max);
    return OK;
}

/* A number that must be 0 (or absent): a feature we do not have. */
static enum err refuse_nonzero(const struct reader *r, const char *key,
                               const char *what)
{
    char full[KEY_BYTES];
    const uint32_t zero = 0;
    uint32_t n = 0;
    enum err rc = read_count(r, key, &zero, 0, UINT32_MAX, &n);
    if (rc == OK && n != 0)
        rc = err_set(r->m, ERR_UNSUPPORTED, "%s is %u: %s are not supported",
                     full_key(full, r, key), n, what);
    return rc;
}

static enum err refuse_bool(const struct reader *r, const char *key, bool bad,
                            const char *what)
{
    char full[KEY_BYTES];
    bool v = !bad;
    enum err rc = gguf_bool(r->g, full_key(full, r, key), &v, r->m);
    if (rc != OK && rc != ERR_NOTFOUND)
        return rc;
    if (v == bad)
        return err_set(r->m, ERR_UNSUPPORTED, "%s is %s: %s is not supported",
                       full, v ? "true" : "false", what);
    return OK;
}

static bool is_known(struct gguf_str key)
{
    for (size_t i = 0; i < sizeof(known_keys) / sizeof(known_keys[0]); i++)
        if (strlen(known_keys[i]) == key.n &&
            memcmp(known_keys[i], key.s, key.n) == 0)
            return true;
    return false;
}

static enum err refuse_unknown_keys(const struct reader *r)
{
    size_t n = strlen(r->arch);
    for (size_t i = 0; i < gguf_n_kv(r->g); i++) {
        struct gguf_str key = gguf_kv_at(r->g, i).key;
        if (key.n <= n || memcmp(key.s, r->arch, n) != 0 || key.s[n] != '.')
            continue;
        struct gguf_str rest = {key.s + n + 1, key.n - n - 1};
        if (!is_known(rest))
            return err_set(r->m, ERR_UNSUPPORTED,
                           "the model has the setting %.*s, which may change "
                           "its results in a way that is not supported",
                           key.n < KEY_BYTES ? (int)key.n : KEY_BYTES, key.s);
    }
    return OK;
}

static enum err read_heads(const struct reader *r, struct config *c)
{
    uint32_t n_rot = 0, value_length = 0;
    enum err rc =
        read_count(r, "attention.head_count", NULL, 1, HEADS_MAX, &c->n_heads);
    if (rc == OK)
        rc = read_count(r, "attention.head_count_kv", &c->n_heads, 1, HEADS_MAX,
                        &c->n_kv_heads);
    if (rc != OK)
        return rc;
    if (c->n_heads % c->n_kv_heads != 0)
        return err_set(r->m, ERR_INVAL,
                       "%u attention heads cannot share %u key/value heads",
                       c->n_heads, c->n_kv_heads);
    if (c->n_heads / c->n_kv_heads > OPS_GROUP_MAX)
        return err_set(r->m, ERR_UNSUPPORTED,
                       "%u query heads share one key/value head; at most %d "
                       "are supported",
                       c->n_heads / c->n_kv_heads, OPS_GROUP_MAX);
    uint32_t dflt = c->n_embd / c->n_heads;
    rc = read_count(r, "attention.key_length", &dflt, 0, UINT32_MAX,
                    &c->head_dim);
    if (rc == OK)
        rc = read_count(r, "attention.value_length", &c->head_dim, 0,
                        UINT32_MAX, &value_length);
    if (rc == OK)
        rc = read_count(r, "rope.dimension_count", &c->head_dim, 0, UINT32_MAX,
                        &n_rot);
    if (rc != OK)
        return rc;
    if (c->head_dim != 64 && c->head_dim != 80 && c->head_dim != 96 &&
        c->head_dim != 128)
        return err_set(r->m, ERR_UNSUPPORTED,
                       "attention heads of %u dimensions are not supported; "
                       "64, 80, 96 and 128 are",
                       c->head_dim);
    if (value_length != c->head_dim)
        return err_set(r->m, ERR_UNSUPPORTED,
                       "values of %u dimensions beside keys of %u are not "
                       "supported",
                       value_length, c->head_dim);
    if (n_rot != c->head_dim)
        return err_set(r->m, ERR_UNSUPPORTED,
                       "%s.rope.dimension_count is %u: rotating only a part of "
                       "a head of %u dimensions is not supported",
                       r->arch, n_rot, c->head_dim);
    return OK;
}

static bool is_word(struct gguf_str s, const char *word)
{
    return s.n == strlen(word) && memcmp(s.s, word, s.n) == 0;
}

static enum err read_rope(const struct reader *r, struct config *c)
{
    char key[KEY_BYTES];
    struct gguf_str type = {"none", 4};
    float base = 0, factor = 1, old_factor = 1;
    enum err rc =
        gguf_string(r->g, full_key(key, r, "rope.scaling.type"), &type, r->m);
    if (rc != OK && rc != ERR_NOTFOUND)
        return rc;
    if (!is_word(type, "none") && !is_word(type, "linear"))
        return err_set(r->m, ERR_UNSUPPORTED,
                       "RoPE scaling \"%.*s\" is not supported",
                       type.n < 40 ? (int)type.n : 40, type.s);
    rc = read_float(r, "rope.freq_base", 10000, 1, 1e12f, &base);
    if (rc == OK)
        rc = read_float(r, "rope.scaling.factor", 1, 1e-3f, 1e6f, &factor);
    if (rc == OK)
        rc = read_float(r, "rope.scale_linear", 1, 1e-3f, 1e6f, &old_factor);
    if (rc != OK)
        return rc;
    c->rope_base = (double)base;
    c->rope_scale = is_word(type, "linear") ? (double)factor : 1.0;
    /* Old files have the factor under this key alone, without a type. */
    if (c->rope_scale == 1.0)
        c->rope_scale = (double)old_factor;
    return OK;
}

/* What a key of known name says that we cannot do. */
static enum err refuse_features(const struct reader *r, const struct config *c)
{
    char key[KEY_BYTES];
    const uint32_t zero = 0;
    uint32_t window = 0;
    enum err rc = refuse_nonzero(r, "expert_count", "experts");
    if (rc == OK)
        rc = refuse_nonzero(r, "expert_used_count", "experts");
    if (rc == OK)
        rc = refuse_bool(r, "attention.causal", false,
                         "attention to later tokens");
    if (rc == OK)
        rc = refuse_bool(r, "use_parallel_residual", true,
                         "a parallel residual");
    if (rc == OK)
        rc = read_count(r, "attention.sliding_window", &zero, 0, UINT32_MAX,
                        &window);
    if (rc == OK && window != 0 && window < c->context_length)
        rc = err_set(r->m, ERR_UNSUPPORTED,
                     "%s is %u: sliding windows are not supported",
                     full_key(key, r, "attention.sliding_window"), window);
    return rc;
}

static enum err read_names(struct model_info *info, const struct gguf *g,
                           struct errmsg *m)
{
    struct gguf_str s;
    struct buf text = {0};
    enum err rc = gguf_string(g, "general.architecture", &s, m);
    if (rc == ERR_NOTFOUND)
        return err_set(m, ERR_INVAL,
                       "the model file has no general.architecture");
    if (rc != OK)
        return rc;
    /* A name that does not fit is none of ours. */
    int n = s.n < sizeof(info->arch) ? (int)s.n : (int)sizeof(info->arch) - 1;
    memcpy(info->arch, s.s, (size_t)n);
    info->arch[n] = 0;
    if (s.n != strlen(info->arch) || !model_family(info->arch))
        return err_set(m, ERR_UNSUPPORTED,
                       "models of architecture \"%.*s\" are not supported; "
                       "%s are",
                       n, s.s, model_family_names());
    if (gguf_string(g, "general.name", &s, NULL) != OK)
        return OK;
    if (s.n >= sizeof(info->name))
        s.n = utf8_complete_prefix(s.s, sizeof(info->name) - 1);
    rc = utf8_append_repaired(&text, s.s, s.n);
    if (rc == OK && text.data) {
        /* Repairs can lengthen: cut again, at a character. */
        size_t len =
            text.len < sizeof(info->name) ? text.len : sizeof(info->name) - 1;
        len = utf8_complete_prefix(text.data, len);
        memcpy(info->name, text.data, len);
        info->name[len] = 0;
    }
    buf_fini(&text);
    return rc == OK ? OK : err_set(m, rc, "no memory for the model's name");
}

enum err model_read_config(struct config *c, struct model_info *info,
                           const struct gguf *g, struct errmsg *m)
{
    enum err rc = read_names(info, g, m);
    if (rc != OK)
        return rc;
    struct reader r = {.g = g, .arch = info->arch, .m = m};
    c->family = model_family(info->arch);
    rc = refuse_unknown_keys(&r);
    if (rc == OK)
        rc = read_count(&r, "block_count", NULL, 1, LAYERS_MAX, &c->n_layers);
    if (rc == OK)
        rc = read_count(&r, "embedding_length", NULL, 1, EMBD_MAX, &c->n_embd);
    if (rc == OK)
        rc = read_count(&r, "feed_forward_length", NULL, 1, FF_MAX, &c->n_ff);
    if (rc == OK)
        rc = read_count(&r, "context_length", NULL, 1, CONTEXT_MAX,
                        &c->context_length);
    if (rc == OK)
        rc = read_float(&r, "attention.layer_norm_rms_epsilon", -1, 0, 1,
                        &c->eps);
    if (rc == OK && c->eps < 0)
        rc = err_set(m, ERR_INVAL,
                     "the model file has no "
                     "%s.attention.layer_norm_rms_epsilon",
                     r.arch);
    if (rc == OK)
        rc = read_heads(&r, c);
    if (rc == OK)
        rc = read_rope(&r, c);
    if (rc == OK)
        rc = refuse_features(&r, c);
    return rc;
}
