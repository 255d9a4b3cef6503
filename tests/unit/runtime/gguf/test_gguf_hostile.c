/* Damaged and random files: every cut, the fuzz corpus, seeded mutations, and
 * random valid files whose content is known. Run it under ASan and UBSan too.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/gguf/gguf.h"
#include "tests/fuzz/touch_gguf.h"
#include "tests/unit/runtime/gguf/gguf_writer.h"

static const char corpus[] = "tests/fuzz/corpus/gguf";

enum { CORPUS_MAX = 64 };

static uint64_t next_random(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

/* Parses and uses a copy in memory of exactly n bytes. */
static enum err touch(const uint8_t *data, size_t n, struct errmsg *m)
{
    uint8_t *copy = malloc(n > 0 ? n : 1);
    assert_non_null(copy);
    memcpy(copy, data, n);
    enum err rc = touch_gguf(copy, n, m);
    free(copy);
    return rc;
}

static bool read_corpus_file(const char *name, struct file *f)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", corpus, name);
    FILE *in = fopen(path, "rb");
    assert_non_null(in);
    f->n = fread(f->b, 1, sizeof(f->b), in);
    bool whole = feof(in) != 0;
    fclose(in);
    return whole;
}

/* Calls use for every file of the corpus; returns how many there are. */
static int each_corpus_file(void (*use)(const char *name, struct file *f,
                                        void *state),
                            void *state)
{
    static struct file f;
    DIR *dir = opendir(corpus);
    assert_non_null(dir);
    int n = 0;
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        if (e->d_name[0] == '.')
            continue;
        assert_true(read_corpus_file(e->d_name, &f));
        use(e->d_name, &f, state);
        n++;
    }
    closedir(dir);
    return n;
}

static void replay(const char *name, struct file *f, void *state)
{
    (void)state;
    struct errmsg m;
    bool bad = strncmp(name, "bad_", 4) == 0;
    enum err rc = touch(f->b, f->n, &m);
    if ((rc != OK) != bad)
        fail_msg("%s: %s '%s'", name, err_name(rc), m.text);
}

static void the_corpus_gives_success_or_an_error_as_its_names_say(void **state)
{
    (void)state;
    assert_in_range(each_corpus_file(replay, NULL), 30, CORPUS_MAX);
}

static void cut_everywhere(const char *name, struct file *f, void *state)
{
    int *n_ok = state;
    struct errmsg m;
    for (size_t n = 0; n < f->n; n++) {
        if (touch(f->b, n, &m) == OK)
            (*n_ok)++;
    }
    (void)name;
}

static void a_cut_at_any_byte_is_an_error_or_a_smaller_valid_file(void **state)
{
    (void)state;
    int n_ok = 0;
    each_corpus_file(cut_everywhere, &n_ok);
    /* Cuts inside the filling behind the last tensor's data leave a valid
     * file, and are all there are: 28 bytes behind Q6_K's 420 in all_types,
     * none elsewhere. */
    assert_int_equal(n_ok, 28);
}

static void a_file_cut_anywhere_is_refused(void **state)
{
    (void)state;
    static struct file f;
    static const uint64_t dims[] = {32, 2};
    struct errmsg m;
    f.n = 0;
    put_header(&f, 3, 2, 4);
    put_kv_u32(&f, "a", 1);
    put_kv_string(&f, "b", "text");
    put_array_head(&f, "c", GGUF_STRING, 2);
    put_text(&f, "x", 1);
    put_text(&f, "yz", 2);
    put_array_head(&f, "d", GGUF_U16, 3);
    put_bytes(&f, "\1\0\2\0\3\0", 6);
    put_tensor(&f, "v", 1, dims, DTYPE_F32, 0);
    put_tensor(&f, "w", 2, dims, DTYPE_Q8_0, 128);
    put_data(&f, 32, 128 + 68);
    assert_int_equal(touch(f.b, f.n, &m), OK);
    for (size_t n = 0; n < f.n; n++)
        assert_int_equal(touch(f.b, n, &m), ERR_INVAL);
}

struct mutation {
    struct file seed[CORPUS_MAX];
    int n_seeds;
};

static void keep(const char *name, struct file *f, void *state)
{
    struct mutation *all = state;
    (void)name;
    assert_in_range(all->n_seeds, 0, CORPUS_MAX - 1);
    memcpy(all->seed[all->n_seeds].b, f->b, f->n);
    all->seed[all->n_seeds++].n = f->n;
}

/* Numbers at which sums, products and casts go wrong. */
static uint64_t nasty(uint64_t *s)
{
    uint64_t x = (uint64_t)1 << (next_random(s) % 64);
    switch (next_random(s) % 5) {
    case 0:
        return x;
    case 1:
        return x - 1;
    case 2:
        return 0 - x;
    case 3:
        return next_random(s) % 64;
    default:
        return next_random(s);
    }
}

static void mutate(struct file *f, uint64_t *s)
{
    size_t at = f->n > 0 ? next_random(s) % f->n : 0;
    size_t len = next_random(s) % 24;
    uint64_t x = nasty(s);
    if (f->n < 8 || f->n > 8192)
        return;
    switch (next_random(s) % 6) {
    case 0:
        f->b[at] ^= (uint8_t)(1 << (x % 8));
        break;
    case 1:
        memcpy(f->b + at, &x, f->n - at < 4 ? f->n - at : 4);
        break;
    case 2:
        memcpy(f->b + at, &x, f->n - at < 8 ? f->n - at : 8);
        break;
    case 3: /* cut a piece out */
        len = len < f->n - at ? len : f->n - at;
        memmove(f->b + at, f->b + at + len, f->n - at - len);
        f->n -= len;
        break;
    case 4: /* say a piece twice */
        len = len < f->n - at ? len : f->n - at;
        memmove(f->b + at + len, f->b + at, f->n - at);
        f->n += len;
        break;
    default:
        f->n = at;
    }
}

static void mutated_files_never_break_a_promise(void **state)
{
    (void)state;
    static struct mutation all;
    static struct file f;
    struct errmsg m;
    uint64_t seed = 20240301;
    int n_ok = 0, n_rounds = 60000;
    all.n_seeds = 0;
    each_corpus_file(keep, &all);
    for (int i = 0; i < n_rounds; i++) {
        const struct file *from =
            &all.seed[next_random(&seed) % (uint64_t)all.n_seeds];
        memcpy(f.b, from->b, from->n);
        f.n = from->n;
        for (uint64_t k = next_random(&seed) % 4; k < 4; k++)
            mutate(&f, &seed);
        n_ok += touch(f.b, f.n, &m) == OK;
    }
    /* Both outcomes were met often enough to mean something. */
    assert_in_range(n_ok, n_rounds / 100, n_rounds - n_rounds / 100);
}

enum { MODEL_KV_MAX = 40, MODEL_TENSORS_MAX = 12 };

/* What a random file was made of. */
struct model {
    size_t n_kv, n_tensors;
    uint64_t number[MODEL_KV_MAX]; /* of key i, a u64 */
    size_t strings[MODEL_KV_MAX];  /* length of array i, of strings "i.k" */
    enum dtype type[MODEL_TENSORS_MAX];
    uint64_t dims[MODEL_TENSORS_MAX][GGUF_DIMS_MAX];
    uint32_t n_dims[MODEL_TENSORS_MAX];
    uint64_t offset[MODEL_TENSORS_MAX];
    uint64_t bytes[MODEL_TENSORS_MAX];
};

static void name_of(char *out, size_t cap, const char *kind, size_t i)
{
    /* Not in the order of i, and some are beginnings of others. */
    snprintf(out, cap, "%s.%zu", kind, i * 7 % 41);
}

static void draw_model(struct model *o, uint64_t *s)
{
    static const enum dtype types[] = {DTYPE_F32,  DTYPE_BF16, DTYPE_Q8_0,
                                       DTYPE_Q5_1, DTYPE_Q4_K, DTYPE_Q6_K};
    static const uint32_t elems[] = {1, 1, 32, 32, 256, 256};
    static const uint32_t size[] = {4, 2, 34, 24, 144, 210};
    uint64_t at = 0;
    memset(o, 0, sizeof(*o));
    o->n_kv = next_random(s) % MODEL_KV_MAX;
    o->n_tensors = next_random(s) % MODEL_TENSORS_MAX;
    for (size_t i = 0; i < o->n_kv; i++) {
        o->number[i] = nasty(s);
        o->strings[i] = next_random(s) % 6;
    }
    for (size_t i = 0; i < o->n_tensors; i++) {
        size_t t = next_random(s) % 6;
        o->type[i] = types[t];
        o->n_dims[i] = 1 + (uint32_t)(next_random(s) % GGUF_DIMS_MAX);
        o->bytes[i] = size[t];
        for (uint32_t d = 0; d < GGUF_DIMS_MAX; d++) {
            uint64_t x = d < o->n_dims[i] ? 1 + next_random(s) % 3 : 1;
            o->dims[i][d] = d == 0 ? x * elems[t] : x;
            o->bytes[i] *= x;
        }
        o->offset[i] = at;
        at += (o->bytes[i] + 31) / 32 * 32;
    }
}

static void write_model(const struct model *o, struct file *f)
{
    char name[32];
    uint64_t end = 0;
    f->n = 0;
    put_header(f, 3, o->n_tensors, 2 * o->n_kv);
    for (size_t i = 0; i < o->n_kv; i++) {
        name_of(name, sizeof(name), "key", i);
        put_kv_number(f, name, GGUF_U64, o->number[i], 8);
        name_of(name, sizeof(name), "array", i);
        put_array_head(f, name, GGUF_STRING, o->strings[i]);
        for (size_t k = 0; k < o->strings[i]; k++) {
            snprintf(name, sizeof(name), "%zu.%zu", i, k);
            put_text(f, name, strlen(name));
        }
    }
    for (size_t i = 0; i < o->n_tensors; i++) {
        name_of(name, sizeof(name), "tensor", i);
        put_tensor(f, name, o->n_dims[i], o->dims[i], o->type[i], o->offset[i]);
        end = o->offset[i] + o->bytes[i];
    }
    put_data(f, 32, end);
}

static void check_model(const struct model *o, const struct gguf *g,
                        const struct file *f)
{
    char name[32];
    uint64_t x = 0;
    struct gguf_str s[6];
    for (size_t i = 0; i < o->n_kv; i++) {
        name_of(name, sizeof(name), "key", i);
        assert_int_equal(gguf_u64(g, name, &x, NULL), OK);
        assert_true(x == o->number[i]);
        name_of(name, sizeof(name), "array", i);
        assert_int_equal(gguf_array_strings(g, name, s, o->strings[i], NULL),
                         OK);
        for (size_t k = 0; k < o->strings[i]; k++) {
            snprintf(name, sizeof(name), "%zu.%zu", i, k);
            assert_int_equal(s[k].n, strlen(name));
            assert_memory_equal(s[k].s, name, s[k].n);
        }
    }
    /* The file ends with the last tensor: count from there. */
    size_t last = o->n_tensors - 1;
    for (size_t i = 0; i < o->n_tensors; i++) {
        name_of(name, sizeof(name), "tensor", i);
        const struct gguf_tensor *t = gguf_tensor_find(g, name);
        assert_non_null(t);
        assert_string_equal(t->name, name);
        assert_true(t->type == o->type[i] && t->n_dims == o->n_dims[i]);
        assert_memory_equal(t->dims, o->dims[i], sizeof(t->dims));
        assert_int_equal(t->bytes, o->bytes[i]);
        uint64_t from_end = o->offset[last] + o->bytes[last] - o->offset[i];
        assert_ptr_equal(t->data, f->b + f->n - from_end);
    }
}

static void random_files_come_back_as_they_were_written(void **state)
{
    (void)state;
    static struct file f;
    static struct model o;
    uint64_t seed = 7;
    for (int i = 0; i < 2000; i++) {
        struct gguf *g = NULL;
        struct errmsg m = {""};
        draw_model(&o, &seed);
        write_model(&o, &f);
        if (gguf_parse(&g, f.b, f.n, &m) != OK)
            fail_msg("file %d: %s", i, m.text);
        assert_int_equal(gguf_n_kv(g), 2 * o.n_kv);
        assert_int_equal(gguf_n_tensors(g), o.n_tensors);
        check_model(&o, g, &f);
        gguf_close(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_corpus_gives_success_or_an_error_as_its_names_say),
        cmocka_unit_test(a_cut_at_any_byte_is_an_error_or_a_smaller_valid_file),
        cmocka_unit_test(a_file_cut_anywhere_is_refused),
        cmocka_unit_test(mutated_files_never_break_a_promise),
        cmocka_unit_test(random_files_come_back_as_they_were_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
