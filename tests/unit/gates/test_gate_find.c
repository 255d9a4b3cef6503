/* Which gates a model gets: files made here, in a folder of their own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/log.h"
#include "gates/gate_find.h"

#define MINE "aa11"
#define OTHERS "bb22"

static const struct gate_shape SHAPE = {2, 10, 3, 4, GATE_RG};
static const struct gate_base BASE = {{2, 10, 3, 0, GATE_RG10}, MINE};

static char folder[64];
/* Everything that the tests put into it, for the end. */
static const char *const names[] = {"a.safetensors",
                                    "b.safetensors",
                                    "c.safetensors",
                                    "d.safetensors",
                                    "e.safetensors",
                                    "f.safetensors",
                                    "0.bin",
                                    "gates/pretrained/w.safetensors",
                                    "gates/pretrained",
                                    "gates"};

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/ebb-find-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static const char *path_of(char out[GATE_PATH_MAX], const char *name)
{
    snprintf(out, GATE_PATH_MAX, "%s/%s", folder, name);
    return out;
}

static int remove_folder(void **state)
{
    char path[GATE_PATH_MAX];
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        remove(path_of(path, names[i]));
    return rmdir(folder);
}

/* first: told apart by it. fingerprint NULL: the file has none. */
static void put(const char *name, float first, const char *fingerprint,
                uint32_t n_kv_heads)
{
    char path[GATE_PATH_MAX];
    struct gate_shape s = SHAPE;
    struct gate *g = NULL;
    s.n_kv_heads = n_kv_heads;
    struct safetensors_string meta[] = {{"gate", "rg"},
                                        {"base_fingerprint", fingerprint}};
    assert_int_equal(gate_new(&g, &s, NULL), OK);
    g->p[0] = first;
    assert_int_equal(gate_save(g, path_of(path, name), false, meta,
                               fingerprint == NULL ? 1 : 2, NULL),
                     OK);
    gate_free(g);
}

static void put_text(const char *name, const char *text)
{
    char path[GATE_PATH_MAX];
    assert_int_equal(
        file_replace(path_of(path, name), text, strlen(text), NULL), OK);
}

static void check_found(struct gate *g, const char *path, const char *name,
                        float first)
{
    char want[GATE_PATH_MAX];
    assert_non_null(g);
    assert_string_equal(path, path_of(want, name));
    assert_true(g->p[0] == first);
    assert_int_equal(g->shape.width, SHAPE.width);
    gate_free(g);
}

static void check_refused(const char *name, enum err want, const char *words)
{
    char path[GATE_PATH_MAX], found[GATE_PATH_MAX];
    struct gate *g = NULL;
    struct errmsg m = {""};
    path_of(path, name);
    assert_int_equal(gate_find(&g, found, path, &BASE, &m), want);
    assert_null(g);
    if (strstr(m.text, words) == NULL || strstr(m.text, name) == NULL)
        fail_msg("no '%s' in: %s", words, m.text);
}

static void a_file_by_name_must_fit(void **state)
{
    char path[GATE_PATH_MAX], found[GATE_PATH_MAX];
    struct gate *g = NULL;
    (void)state;
    put("a.safetensors", 1.0f, MINE, 3);
    put("b.safetensors", 2.0f, NULL, 3);
    put("c.safetensors", 3.0f, OTHERS, 3);
    put("d.safetensors", 4.0f, MINE, 5);
    put_text("e.safetensors", "not gates");
    path_of(path, "a.safetensors");
    assert_int_equal(gate_find(&g, found, path, &BASE, NULL), OK);
    check_found(g, found, "a.safetensors", 1.0f);
    /* It does not say for which model: the user does. */
    path_of(path, "b.safetensors");
    assert_int_equal(gate_find(&g, found, path, &BASE, NULL), OK);
    check_found(g, found, "b.safetensors", 2.0f);
    check_refused("c.safetensors", ERR_CONFLICT, "base_fingerprint is " OTHERS);
    check_refused("d.safetensors", ERR_CONFLICT, "5 KV heads");
    check_refused("e.safetensors", ERR_INVAL, "e.safetensors");
    check_refused("nothing", ERR_NOTFOUND, "cannot open");
    check_refused("gates", ERR_NOTFOUND, "cannot open");
}

/* After the test above: a fits, b does not say, c is another model's, d is of
 * the wrong shape, e is no file of gates. */
static void a_folder_gives_the_first_that_is_for_the_model(void **state)
{
    char path[GATE_PATH_MAX];
    struct gate *g = NULL;
    (void)state;
    put("0.bin", 9.0f, MINE, 3);
    put("f.safetensors", 6.0f, MINE, 3);
    assert_int_equal(gate_find_in(&g, path, folder, &BASE, NULL), OK);
    check_found(g, path, "a.safetensors", 1.0f);
    remove(path);
    assert_int_equal(gate_find_in(&g, path, folder, &BASE, NULL), OK);
    check_found(g, path, "f.safetensors", 6.0f);
    remove(path);
    assert_int_equal(gate_find_in(&g, path, folder, &BASE, NULL), OK);
    assert_null(g);
    assert_string_equal(path, "");
    assert_int_equal(gate_find_in(&g, path, "/nowhere/at/all", &BASE, NULL),
                     OK);
    assert_null(g);
}

static void automatic_looks_in_the_working_directory(void **state)
{
    char path[GATE_PATH_MAX], before[GATE_PATH_MAX];
    struct gate *g = NULL;
    (void)state;
    assert_non_null(getcwd(before, sizeof(before)));
    assert_int_equal(mkdir(path_of(path, "gates"), 0700), 0);
    assert_int_equal(mkdir(path_of(path, "gates/pretrained"), 0700), 0);
    assert_int_equal(chdir(folder), 0);
    assert_int_equal(gate_find(&g, path, "auto", &BASE, NULL), OK);
    assert_null(g);
    assert_string_equal(path, "");
    put("gates/pretrained/w.safetensors", 7.0f, MINE, 3);
    assert_int_equal(gate_find(&g, path, "auto", &BASE, NULL), OK);
    assert_non_null(g);
    assert_true(g->p[0] == 7.0f);
    assert_string_equal(path, "gates/pretrained/w.safetensors");
    gate_free(g);
    assert_int_equal(gate_find(&g, path, "none", &BASE, NULL), OK);
    assert_null(g);
    assert_string_equal(path, "");
    assert_int_equal(chdir(before), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_by_name_must_fit),
        cmocka_unit_test(a_folder_gives_the_first_that_is_for_the_model),
        cmocka_unit_test(automatic_looks_in_the_working_directory),
    };
    log_setup(LOG_LEVEL_OFF, LOG_FORMAT_TEXT);
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
