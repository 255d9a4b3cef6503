/* The file of records: what was added is there again, also after a run that
 * ended in the middle of a line. */
#include "tests/unit/bench/eval/rig.h"

#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "bench/eval/records.h"

struct setup {
    char dir[64], path[96];
    struct errmsg m;
};

static void setup_init(struct setup *s)
{
    memset(s, 0, sizeof(*s));
    snprintf(s->dir, sizeof(s->dir), "/tmp/ebb-records-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    snprintf(s->path, sizeof(s->path), "%s/r.part", s->dir);
}

static void setup_fini(struct setup *s)
{
    unlink(s->path);
    rmdir(s->dir);
}

static struct records_keys keys_of(const char *plain)
{
    struct records_keys keys = {.gates = "g1"};
    memcpy(keys.plain, plain, strlen(plain) + 1);
    return keys;
}

static struct records *open_as(struct setup *s, const char *key)
{
    struct records *r = NULL;
    struct records_keys keys = keys_of(key);
    if (records_open(&r, s->path, &keys, &s->m) != OK)
        fail_msg("%s", s->m.text);
    return r;
}

static struct record record_of(enum task task, uint32_t doc, const char *policy,
                               double budget)
{
    struct record r = {.task = task, .doc = doc, .budget = budget};
    memcpy(r.policy, policy, strlen(policy) + 1);
    for (int i = 0; i < METRIC_COUNT; i++)
        r.figures.metric[i] = 0.1 * (i + 1) + doc / 3.0;
    r.figures.n_entries = 100;
    r.figures.bytes = 27200.5;
    if (strchr(policy, '+') != NULL) {
        r.figures.routed = 0.25;
        r.figures.gate = 1.0 / 3;
        r.figures.log_ratio = 1.5;
    }
    return r;
}

static bool is_there(const struct records *r, const struct record *want)
{
    struct choice c = {.budget = want->budget};
    memcpy(c.name, want->policy, sizeof(c.name));
    const struct record *x = records_find(r, want->task, want->doc, &c);
    return x != NULL &&
           memcmp(&x->figures, &want->figures, sizeof(x->figures)) == 0;
}

static void records_come_back(void **state)
{
    (void)state;
    struct setup s;
    setup_init(&s);
    const struct record all[] = {record_of(TASK_F, 3, "keydiff", 0.25),
                                 record_of(TASK_A, 0, "full", 1),
                                 record_of(TASK_A, 0, "keydiff+merge", 0.125),
                                 record_of(TASK_A, 1, "keydiff", 0.25),
                                 record_of(TASK_B2, 1, "no-context", 0)};
    struct records *r = open_as(&s, "k1");
    for (int i = 0; i < 5; i++) {
        assert_false(is_there(r, &all[i]));
        assert_int_equal(records_add(r, &all[i], &s.m), OK);
        assert_true(is_there(r, &all[i]));
    }
    records_close(r);
    r = open_as(&s, "k1");
    for (int i = 0; i < 5; i++)
        assert_true(is_there(r, &all[i]));
    struct record other = record_of(TASK_A, 2, "full", 1);
    assert_false(is_there(r, &other));
    records_close(r);
    setup_fini(&s);
}

static void other_settings_have_records_of_their_own(void **state)
{
    (void)state;
    struct setup s;
    setup_init(&s);
    struct record a = record_of(TASK_A, 0, "full", 1), b = a;
    b.figures.metric[0] = 9;
    struct records *r = open_as(&s, "k1");
    assert_int_equal(records_add(r, &a, &s.m), OK);
    records_close(r);
    r = open_as(&s, "k2");
    assert_false(is_there(r, &a));
    assert_int_equal(records_add(r, &b, &s.m), OK);
    records_close(r);
    r = open_as(&s, "k1");
    assert_true(is_there(r, &a) && !is_there(r, &b));
    records_close(r);
    setup_fini(&s);
}

/* Other gates: what depends on them is measured anew, all else is there. */
static void gates_have_records_of_their_own(void **state)
{
    (void)state;
    struct setup s;
    setup_init(&s);
    struct record plain = record_of(TASK_A, 0, "knorm", 0.5);
    struct record gated = record_of(TASK_A, 0, "trimkv", 0.5);
    gated.has_gates = true;
    struct records_keys keys = {"k1", "g1"}, other = {"k1", "g2"};
    struct records *r = NULL;
    assert_int_equal(records_open(&r, s.path, &keys, &s.m), OK);
    assert_int_equal(records_add(r, &plain, &s.m), OK);
    assert_int_equal(records_add(r, &gated, &s.m), OK);
    records_close(r);
    assert_int_equal(records_open(&r, s.path, &other, &s.m), OK);
    assert_true(is_there(r, &plain) && !is_there(r, &gated));
    records_close(r);
    assert_int_equal(records_open(&r, s.path, &keys, &s.m), OK);
    assert_true(is_there(r, &plain) && is_there(r, &gated));
    records_close(r);
    setup_fini(&s);
}

/* The caller's name of the file may be gone by then. */
static void a_write_that_fails_names_the_file(void **state)
{
    (void)state;
    struct setup s;
    struct records *r = NULL;
    struct records_keys keys = keys_of("k1");
    struct rlimit before, none;
    char path[sizeof(s.path)];
    setup_init(&s);
    memcpy(path, s.path, sizeof(path));
    assert_int_equal(records_open(&r, path, &keys, &s.m), OK);
    memset(path, 'x', sizeof(path) - 1);
    struct record a = record_of(TASK_A, 0, "full", 1);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    enum err rc = records_add(r, &a, &s.m);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(rc, ERR_IO);
    assert_non_null(strstr(s.m.text, s.path));
    records_close(r);
    setup_fini(&s);
}

/* Killed after every possible byte of the last line. */
static void a_line_that_was_cut_goes(void **state)
{
    (void)state;
    struct setup s;
    struct buf whole = {0}, now = {0};
    setup_init(&s);
    struct record a = record_of(TASK_A, 0, "full", 1);
    struct record b = record_of(TASK_A, 1, "full", 1);
    struct records *r = open_as(&s, "k1");
    assert_int_equal(records_add(r, &a, &s.m), OK);
    assert_int_equal(records_add(r, &b, &s.m), OK);
    records_close(r);
    assert_int_equal(file_read_all(&whole, s.path, 1 << 20, &s.m), OK);
    size_t first = strcspn(whole.data, "\n") + 1;
    for (size_t n = first; n < whole.len; n++) {
        assert_int_equal(file_replace(s.path, whole.data, n, &s.m), OK);
        r = open_as(&s, "k1");
        assert_true(is_there(r, &a) && !is_there(r, &b));
        assert_int_equal(records_add(r, &b, &s.m), OK);
        records_close(r);
        buf_clear(&now);
        assert_int_equal(file_read_all(&now, s.path, 1 << 20, &s.m), OK);
        assert_int_equal(now.len, whole.len);
        assert_memory_equal(now.data, whole.data, now.len);
    }
    buf_fini(&whole);
    buf_fini(&now);
    setup_fini(&s);
}

static void two_runs_do_not_share_a_file(void **state)
{
    (void)state;
    struct setup s;
    setup_init(&s);
    struct records_keys keys = keys_of("k1");
    struct records *r = open_as(&s, "k1"), *other = NULL;
    assert_int_equal(records_open(&other, s.path, &keys, &s.m), ERR_BUSY);
    assert_non_null(strstr(s.m.text, s.path));
    records_close(r);
    r = open_as(&s, "k1");
    records_close(r);
    setup_fini(&s);
}

static void a_file_of_something_else_is_left_alone(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "hello\n", "{}\n", "{\"key\":\"k1\"}\n", "[1]\n",
        "{\"key\":\"k1\",\"task\":\"A\",\"doc\":-1,\"policy\":\"full\"}\n"};
    struct setup s;
    setup_init(&s);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct records *r = NULL;
        struct records_keys keys = keys_of("k1");
        struct buf now = {0};
        size_t n = strlen(texts[i]);
        assert_int_equal(file_replace(s.path, texts[i], n, &s.m), OK);
        assert_int_equal(records_open(&r, s.path, &keys, &s.m), ERR_INVAL);
        assert_non_null(strstr(s.m.text, "line 1"));
        assert_int_equal(file_read_all(&now, s.path, 1000, &s.m), OK);
        assert_int_equal(now.len, n);
        buf_fini(&now);
    }
    setup_fini(&s);
}

static void without_a_file_records_live_in_memory(void **state)
{
    (void)state;
    struct records *r = NULL;
    struct errmsg m = {""};
    struct record a = record_of(TASK_A, 0, "full", 1);
    struct records_keys keys = keys_of("k1");
    assert_int_equal(records_open(&r, NULL, &keys, &m), OK);
    assert_int_equal(records_add(r, &a, &m), OK);
    assert_true(is_there(r, &a));
    records_close(r);
}

/* JSON has no such number: better an end than a line nobody can read. */
static void a_figure_that_is_no_number_is_an_error(void **state)
{
    (void)state;
    struct setup s;
    setup_init(&s);
    struct record a = record_of(TASK_A, 0, "full", 1);
    a.figures.metric[METRIC_KL] = NAN;
    struct records *r = open_as(&s, "k1");
    assert_int_equal(records_add(r, &a, &s.m), ERR_INVAL);
    records_close(r);
    r = open_as(&s, "k1");
    records_close(r);
    setup_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_come_back),
        cmocka_unit_test(other_settings_have_records_of_their_own),
        cmocka_unit_test(gates_have_records_of_their_own),
        cmocka_unit_test(a_write_that_fails_names_the_file),
        cmocka_unit_test(a_line_that_was_cut_goes),
        cmocka_unit_test(two_runs_do_not_share_a_file),
        cmocka_unit_test(a_file_of_something_else_is_left_alone),
        cmocka_unit_test(without_a_file_records_live_in_memory),
        cmocka_unit_test(a_figure_that_is_no_number_is_an_error)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
