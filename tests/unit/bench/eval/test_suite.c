/* Whole runs with a tiny model: a run that was killed again and again ends
 * with the same file as one that was not, and measures nothing twice. */
#include "tests/unit/bench/eval/rig.h"

#include <stdio.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "bench/eval/suite.h"
#include "tests/unit/killed.h"

enum { DOCS = 2, CHOICES = 4, CELLS = 2 * DOCS * CHOICES };

struct setup {
    struct rig r;
    enum task task[2];
    struct choice choice[CHOICES];
    char dir[64], json[96], part[112], whole[96], whole_part[112];
    struct suite s;
};

static void setup_init(struct setup *x, int n_threads)
{
    memset(x, 0, sizeof(*x));
    rig_open(&x->r, n_threads);
    snprintf(x->dir, sizeof(x->dir), "/tmp/ebb-suite-XXXXXX");
    assert_non_null(mkdtemp(x->dir));
    snprintf(x->json, sizeof(x->json), "%s/out.json", x->dir);
    snprintf(x->part, sizeof(x->part), "%s.part", x->json);
    snprintf(x->whole, sizeof(x->whole), "%s/whole.json", x->dir);
    snprintf(x->whole_part, sizeof(x->whole_part), "%s.part", x->whole);
    x->task[0] = TASK_B2;
    x->task[1] = TASK_F;
    x->choice[0] = rig_choice("full", 1);
    x->choice[1] = rig_choice("no-context", 0);
    x->choice[2] = rig_choice("random", 0.25);
    x->choice[3] = rig_choice("keydiff", 0.25);
    x->s = (struct suite){.cells = {.task = x->task,
                                    .n_tasks = 2,
                                    .choice = x->choice,
                                    .n_choices = CHOICES,
                                    .n_docs = DOCS,
                                    .seed = 1,
                                    .model = "tiny",
                                    .gates = "none",
                                    .split = "own",
                                    .context = RIG_TOKENS},
                          .lab = x->r.lab,
                          .document = x->r.document,
                          .identity = "model=tiny",
                          .gates = ""};
}

static void setup_fini(struct setup *x)
{
    unlink(x->json);
    unlink(x->part);
    unlink(x->whole);
    unlink(x->whole_part);
    rmdir(x->dir);
    rig_close(&x->r);
}

static void run(struct setup *x, const char *json)
{
    struct errmsg m = {""};
    x->s.json = json;
    if (suite_run(&x->s, &m) != OK)
        fail_msg("%s", m.text);
}

static struct buf read_file(const char *path)
{
    struct buf b = {0};
    struct errmsg m = {""};
    if (access(path, R_OK) == 0)
        assert_int_equal(file_read_all(&b, path, 1 << 24, &m), OK);
    return b;
}

/* A child runs until the file has n lines, and is killed: also in the middle
 * of a cell, and of a line. */
static void run_until_killed(const struct setup *x, size_t n)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        /* The threads of a pool stay with the parent: the child has its own
         * of everything. */
        struct setup own;
        struct errmsg m = {""};
        setup_init(&own, 2);
        rmdir(own.dir);
        own.s.json = x->json;
        _exit(suite_run(&own.s, &m) == OK ? 0 : 1);
    }
    kill_after_lines(child, x->part, n);
}

static void check_same(const char *a, const char *b)
{
    struct buf x = read_file(a), y = read_file(b);
    assert_true(x.len > 0);
    assert_int_equal(x.len, y.len);
    assert_memory_equal(x.data, y.data, x.len);
    buf_fini(&x);
    buf_fini(&y);
}

static void a_killed_run_goes_on(void **state)
{
    (void)state;
    struct setup x;
    setup_init(&x, 2);
    run(&x, x.whole);
    assert_int_equal(lines_of(x.whole_part), CELLS);
    for (size_t n = 3; n < CELLS; n += 5)
        run_until_killed(&x, n);
    run(&x, x.json);
    check_same(x.json, x.whole);
    check_same(x.part, x.whole_part); /* in the same order, none twice */
    setup_fini(&x);
}

static void a_finished_run_measures_nothing(void **state)
{
    (void)state;
    struct setup x;
    setup_init(&x, 1);
    run(&x, x.json);
    struct buf before = read_file(x.json), part = read_file(x.part);
    /* Without a model there is nothing to measure with. */
    x.s.lab.model = NULL;
    run(&x, x.json);
    struct buf after = read_file(x.json), part_after = read_file(x.part);
    assert_int_equal(before.len, after.len);
    assert_memory_equal(before.data, after.data, after.len);
    assert_int_equal(part.len, part_after.len);
    buf_fini(&before);
    buf_fini(&after);
    buf_fini(&part);
    buf_fini(&part_after);
    setup_fini(&x);
}

/* More documents and another policy: only what is new is measured. */
static void a_larger_run_takes_over_the_smaller_one(void **state)
{
    (void)state;
    struct setup x;
    setup_init(&x, 2);
    run(&x, x.whole);
    x.s.cells.n_docs = 1;
    x.s.cells.n_choices = 3;
    run(&x, x.json);
    assert_int_equal(lines_of(x.part), 2 * 3);
    x.s.cells.n_docs = DOCS;
    x.s.cells.n_choices = CHOICES;
    run(&x, x.json);
    assert_int_equal(lines_of(x.part), CELLS);
    check_same(x.json, x.whole);
    setup_fini(&x);
}

static void other_settings_are_measured_anew(void **state)
{
    (void)state;
    struct setup x;
    setup_init(&x, 2);
    x.s.cells.n_docs = 1;
    run(&x, x.json);
    size_t n_rows = lines_of(x.json);
    x.s.identity = "model=other";
    run(&x, x.json);
    assert_int_equal(lines_of(x.part), 2 * 2 * CHOICES);
    assert_int_equal(lines_of(x.json), 2 * n_rows); /* beside the others */
    setup_fini(&x);
}

static void a_stop_keeps_what_was_measured(void **state)
{
    (void)state;
    struct setup x;
    struct errmsg m = {""};
    atomic_bool stop = true;
    setup_init(&x, 1);
    x.s.json = x.json;
    x.s.stop = &stop;
    assert_int_equal(suite_run(&x.s, &m), ERR_CANCELLED);
    assert_int_equal(access(x.json, F_OK), -1);
    x.s.stop = NULL;
    run(&x, x.json);
    assert_int_equal(lines_of(x.part), CELLS);
    setup_fini(&x);
}

/* Before hours of measuring, not after. */
static void a_page_that_cannot_be_is_told_before(void **state)
{
    (void)state;
    struct setup x;
    struct errmsg m = {""};
    char page[128];
    setup_init(&x, 1);
    snprintf(page, sizeof(page), "%s/nowhere/page.html", x.dir);
    x.s.json = x.json;
    x.s.html = page;
    assert_int_equal(suite_run(&x.s, &m), ERR_IO);
    assert_non_null(strstr(m.text, page));
    assert_int_equal(access(x.part, F_OK), -1);
    x.s.html = x.dir;
    assert_int_equal(suite_run(&x.s, &m), ERR_INVAL);
    assert_int_equal(access(x.part, F_OK), -1);
    setup_fini(&x);
}

static void too_few_texts_are_told(void **state)
{
    (void)state;
    struct setup x;
    struct errmsg m = {""};
    setup_init(&x, 1);
    x.s.json = NULL;
    x.s.cells.n_docs = RIG_TEXT_BYTES / RIG_TOKENS;
    assert_int_equal(suite_run(&x.s, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "documents"));
    setup_fini(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_run_goes_on),
        cmocka_unit_test(a_finished_run_measures_nothing),
        cmocka_unit_test(a_larger_run_takes_over_the_smaller_one),
        cmocka_unit_test(other_settings_are_measured_anew),
        cmocka_unit_test(a_stop_keeps_what_was_measured),
        cmocka_unit_test(a_page_that_cannot_be_is_told_before),
        cmocka_unit_test(too_few_texts_are_told)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
