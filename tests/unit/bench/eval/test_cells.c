/* The table: means, differences document by document, and the file of rows.
 * Figures are made up so that the right answers can be seen. */
#include "tests/unit/bench/eval/rig.h"

#include <stdio.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"
#include "bench/eval/cells.h"
#include "bench/eval/oracle.h"

enum { DOCS = 6, DOCS_MAX = 8, CHOICES = 6 };

struct setup {
    struct records *r;
    enum task task[2];
    struct choice choice[CHOICES];
    struct cells_input in;
};

/* kl of document d: full 0, random 1 + d, keydiff 1 + d - 0.5 and 2 less where
 * it merges, knorm 5; at another budget random is 0.1. em: full 1 for all but
 * the first n_wrong. */
static double figure(const char *policy, double budget, enum metric m,
                     uint32_t d, uint32_t n_wrong)
{
    bool is_full = strcmp(policy, "full") == 0;
    if (m == METRIC_EM)
        return is_full ? d >= n_wrong : d % 2;
    if (m != METRIC_KL)
        return 0.5;
    return is_full                          ? 0
           : budget == 0.5                  ? 0.1
           : strcmp(policy, "random") == 0  ? 1 + d
           : strcmp(policy, "keydiff") == 0 ? 1 + d - 0.5
           : strchr(policy, '+') != NULL    ? 1 + d - 2.5
                                            : 5;
}

/* Task A and another. */
static void setup_init_with(struct setup *s, uint32_t n_wrong, enum task task)
{
    static const char *const names[] = {"full",  "random", "keydiff",
                                        "knorm", "random", "keydiff+merge"};
    static const double budgets[] = {1, 0.25, 0.25, 0.25, 0.5, 0.25};
    struct errmsg m = {""};
    memset(s, 0, sizeof(*s));
    const struct records_keys keys = {"k", "g"};
    assert_int_equal(records_open(&s->r, NULL, &keys, &m), OK);
    s->task[0] = TASK_A;
    s->task[1] = task;
    for (int c = 0; c < CHOICES; c++) {
        s->choice[c] = rig_choice(names[c], budgets[c]);
        for (int t = 0; t < 2; t++)
            for (uint32_t d = 0; d < DOCS_MAX; d++) {
                struct record r = {
                    .task = s->task[t], .doc = d, .budget = budgets[c]};
                memcpy(r.policy, names[c], strlen(names[c]) + 1);
                for (int i = 0; i < METRIC_COUNT; i++)
                    r.figures.metric[i] = figure(names[c], budgets[c],
                                                 (enum metric)i, d, n_wrong);
                r.figures.bytes = 1000 * budgets[c];
                if (strchr(names[c], '+') != NULL) {
                    r.figures.routed = 0.1 * d;
                    r.figures.log_ratio = d == 2 ? 7 : 1;
                }
                assert_int_equal(records_add(s->r, &r, &m), OK);
            }
    }
    s->in = (struct cells_input){.records = s->r,
                                 .task = s->task,
                                 .n_tasks = 2,
                                 .choice = s->choice,
                                 .n_choices = CHOICES,
                                 .n_docs = DOCS,
                                 .against = "random",
                                 .seed = 1,
                                 .model = "tiny \"q\"",
                                 .gates = "none",
                                 .split = "dev",
                                 .settings = "0123abcd",
                                 .context = 1024};
}

static void setup_init(struct setup *s, uint32_t n_wrong)
{
    setup_init_with(s, n_wrong, TASK_B2);
}

static struct cells compute(const struct setup *s)
{
    struct cells c = {.n = 0};
    struct errmsg m = {""};
    if (cells_compute(&c, &s->in, &m) != OK)
        fail_msg("%s", m.text);
    return c;
}

static bool near(double a, double b)
{
    return fabs(a - b) < 1e-12;
}

static void means_are_over_documents(void **state)
{
    (void)state;
    struct setup s;
    setup_init(&s, 0);
    struct cells c = compute(&s);
    const struct cells_row *row = cells_find(&c, "A", &s.choice[1], "kl");
    assert_true(near(row->value.mean, 3.5) && row->n == DOCS);
    assert_true(row->value.lo < 3.5 && row->value.hi > 3.5);
    assert_true(near(row->bytes, 250));
    assert_null(row->against);
    row = cells_find(&c, "all", &s.choice[1], "kl");
    assert_true(near(row->value.mean, 3.5) && row->n == 2 * DOCS);
    /* A has no answers: exact match is over the other task's documents. */
    assert_null(cells_find(&c, "A", &s.choice[1], "em"));
    assert_int_equal(cells_find(&c, "all", &s.choice[1], "em")->n, DOCS);
    cells_fini(&c);
    records_close(s.r);
}

/* Both vary by five from document to document, their difference not at all:
 * pairing leaves an interval without width. */
static void differences_are_paired(void **state)
{
    (void)state;
    struct setup s;
    setup_init(&s, 0);
    struct cells c = compute(&s);
    const struct cells_row *row =
        cells_find(&c, "A", &s.choice[2], "kl_minus_random");
    assert_true(near(row->value.mean, -0.5) && near(row->value.lo, -0.5) &&
                near(row->value.hi, -0.5));
    assert_string_equal(row->against, "random");
    /* full is compared with no budget of random, and random not with itself. */
    assert_null(cells_find(&c, "A", &s.choice[0], "kl_minus_random"));
    assert_null(cells_find(&c, "A", &s.choice[1], "kl_minus_random"));
    cells_fini(&c);
    records_close(s.r);
}

static void the_best_other_has_the_same_budget(void **state)
{
    (void)state;
    struct setup s;
    setup_init(&s, 0);
    struct cells c = compute(&s);
    /* The means at 0.25: random 3.5, keydiff 3, or 1 with its merge, knorm 5.
     * keydiff's merge keeps what it keeps, so it is no other for it. */
    for (int i = 2; i < CHOICES; i += CHOICES - 3) {
        const struct cells_row *row =
            cells_find(&c, "B2", &s.choice[i], "kl_minus_best");
        assert_string_equal(row->against, "random");
        assert_true(near(row->value.mean, i == 2 ? -0.5 : -2.5));
    }
    const struct cells_row *row =
        cells_find(&c, "B2", &s.choice[3], "kl_minus_best");
    assert_string_equal(row->against, "keydiff+merge");
    assert_true(near(row->value.mean, 4));
    /* Alone at its budget; and full is no policy. */
    assert_null(cells_find(&c, "B2", &s.choice[4], "kl_minus_best"));
    assert_null(cells_find(&c, "B2", &s.choice[0], "kl_minus_best"));
    cells_fini(&c);
    records_close(s.r);
}

/* One that knows the answers, here in place of keydiff's merge, is the best
 * other of none, but may be compared with one that is named. */
static void the_oracle_competes_with_none(void **state)
{
    (void)state;
    struct setup s;
    setup_init(&s, 0);
    s.choice[5].kind = CHOICE_ORACLE;
    s.choice[5].policy = oracle_policy();
    s.choice[5].fate = NULL;
    struct cells c = compute(&s);
    const struct cells_row *row =
        cells_find(&c, "B2", &s.choice[3], "kl_minus_best");
    assert_string_equal(row->against, "keydiff");
    assert_null(cells_find(&c, "B2", &s.choice[5], "kl_minus_best"));
    row = cells_find(&c, "B2", &s.choice[5], "kl_minus_random");
    assert_true(near(row->value.mean, -2.5));
    cells_fini(&c);
    records_close(s.r);
}

/* The same entries without the merge: document by document two less. */
static void a_merge_is_compared_with_dropping(void **state)
{
    (void)state;
    struct setup s;
    setup_init(&s, 0);
    struct cells c = compute(&s);
    const struct cells_row *row =
        cells_find(&c, "A", &s.choice[5], "kl_minus_drop");
    assert_string_equal(row->against, "keydiff");
    assert_true(near(row->value.mean, -2) && near(row->value.lo, -2) &&
                near(row->value.hi, -2));
    assert_true(near(row->routed, 0.25) && near(row->log_ratio, 7));
    assert_non_null(cells_find(&c, "B2", &s.choice[5], "em_minus_drop"));
    for (int i = 0; i < 5; i++)
        assert_null(cells_find(&c, "A", &s.choice[i], "kl_minus_drop"));
    cells_fini(&c);
    /* Not with those whose keys stayed where they were. */
    s.choice[5].reposition = true;
    c = compute(&s);
    assert_null(cells_find(&c, "A", &s.choice[5], "kl_minus_drop"));
    cells_fini(&c);
    records_close(s.r);
}

/* em of full is 1; of no-context, here in place of knorm, what it is of random:
 * so random is at the lower end, in every draw. */
static void normalised_is_between_the_ends(void **state)
{
    (void)state;
    struct setup s;
    setup_init(&s, 0);
    s.choice[3].kind = CHOICE_NO_CONTEXT;
    struct cells c = compute(&s);
    const struct cells_row *row =
        cells_find(&c, "B2", &s.choice[1], "em_normalised");
    assert_non_null(row);
    assert_true(near(row->value.mean, 0) && near(row->value.lo, 0));
    /* nll is 0.5 for all: there is no scale. */
    assert_null(cells_find(&c, "B2", &s.choice[1], "nll_normalised"));
    assert_null(cells_find(&c, "B2", &s.choice[1], "kl_normalised"));
    assert_null(cells_find(&c, "B2", &s.choice[0], "em_normalised"));
    cells_fini(&c);
    records_close(s.r);
}

static void a_weak_model_is_told(void **state)
{
    (void)state;
    for (uint32_t n_wrong = 2; n_wrong <= 3; n_wrong++) { /* .67 and .5 */
        struct setup s;
        setup_init(&s, n_wrong);
        struct cells c = compute(&s);
        for (size_t i = 0; i < c.n; i++) {
            bool is_em = strncmp(c.row[i].metric, "em", 2) == 0;
            assert_int_equal(c.row[i].is_weak, is_em && n_wrong == 3);
        }
        cells_fini(&c);
        records_close(s.r);
    }
}

/* The lines of a file as objects; *n is how many. */
static size_t read_rows(const char *path, cJSON **row, size_t most)
{
    struct buf b = {0};
    struct errmsg m = {""};
    size_t n = 0;
    assert_int_equal(file_read_all(&b, path, 1 << 24, &m), OK);
    for (size_t at = 0; at < b.len; at += strcspn(b.data + at, "\n") + 1) {
        assert_true(n < most);
        size_t len = strcspn(b.data + at, "\n");
        if (json_parse(&row[n++], b.data + at, len, &m) != OK)
            fail_msg("%s", m.text);
    }
    buf_fini(&b);
    return n;
}

static bool is_text(const cJSON *row, const char *key, const char *want)
{
    const char *s = cJSON_GetStringValue(json_get(row, key));
    return s != NULL && strcmp(s, want) == 0;
}

static double number(const cJSON *row, const char *key)
{
    assert_true(cJSON_IsNumber(json_get(row, key)));
    return json_get(row, key)->valuedouble;
}

static void check_row(const cJSON *row, const struct cells_row *want)
{
    assert_true(is_text(row, "model", "tiny \"q\""));
    assert_true(is_text(row, "mode", "agnostic"));
    assert_true(is_text(row, "settings", "0123abcd"));
    if (strcmp(want->task, "all") == 0)
        assert_true(is_text(row, "tasks", "A,B2"));
    else
        assert_null(json_get(row, "tasks"));
    assert_true(is_text(row, "task", want->task));
    assert_true(is_text(row, "policy", want->choice->name));
    assert_true(is_text(row, "metric", want->metric));
    assert_true(number(row, "context") == 1024);
    assert_true(number(row, "budget") == want->choice->budget);
    assert_true(number(row, "mean") == want->value.mean);
    assert_true(number(row, "lo") == want->value.lo);
    assert_true(number(row, "hi") == want->value.hi);
    assert_true(number(row, "n") == want->n);
    assert_true(number(row, "bytes") == want->bytes);
    assert_true(is_text(row, "note", "model too weak") == want->is_weak);
    assert_int_equal(json_get(row, "routed") != NULL,
                     want->choice->fate != NULL);
    if (want->choice->fate != NULL)
        assert_true(number(row, "routed") == want->routed &&
                    number(row, "mean_gate") == want->gate &&
                    number(row, "log_ratio") == want->log_ratio);
}

/* Saved twice: nothing is there twice. Rows of other cells stay. */
static void rows_are_lines_of_json(void **state)
{
    (void)state;
    enum { ROWS_MAX = 1000 };
    struct setup s;
    struct errmsg m = {""};
    char dir[] = "/tmp/ebb-cells-XXXXXX", path[64];
    cJSON *row[ROWS_MAX];
    setup_init(&s, 3);
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/out.json", dir);
    struct cells c = compute(&s);
    assert_int_equal(cells_check_file(path, &m), OK);
    for (int times = 0; times < 2; times++) {
        assert_int_equal(cells_save(&c, path, &m), OK);
        assert_int_equal(read_rows(path, row, ROWS_MAX), c.n);
        for (size_t i = 0; i < c.n; i++) {
            check_row(row[i], &c.row[i]);
            cJSON_Delete(row[i]);
        }
    }
    struct setup other = s;
    other.in.context = 2048;
    struct cells more = compute(&other);
    assert_int_equal(cells_save(&more, path, &m), OK);
    size_t n = read_rows(path, row, ROWS_MAX);
    assert_int_equal(n, 2 * c.n);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(number(row[i], "context"), i < c.n ? 1024 : 2048);
        cJSON_Delete(row[i]);
    }
    unlink(path);
    rmdir(dir);
    cells_fini(&c);
    cells_fini(&more);
    records_close(s.r);
}

/* Other settings make other rows, and what does not say its settings stays. */
static void other_settings_are_other_rows(void **state)
{
    (void)state;
    enum { ROWS_MAX = 1000 };
    struct setup s;
    struct errmsg m = {""};
    struct buf old = {0};
    char dir[] = "/tmp/ebb-cells-XXXXXX", path[64];
    cJSON *row[ROWS_MAX];
    setup_init(&s, 0);
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/out.json", dir);
    struct cells c = compute(&s);
    assert_int_equal(buf_puts(&old,
                              "{\"model\":\"tiny \\\"q\\\"\",\"context\":1024,"
                              "\"mode\":\"agnostic\",\"task\":\"A\","
                              "\"policy\":\"random\",\"metric\":\"kl\","
                              "\"budget\":0.25,\"seed\":1,\"split\":\"dev\","
                              "\"gates\":\"none\"}\n"),
                     OK);
    assert_int_equal(file_replace(path, old.data, old.len, &m), OK);
    buf_fini(&old);
    for (int times = 0; times < 4; times++) {
        s.in.settings = times % 2 == 0 ? "0123abcd" : "4567abcd";
        assert_int_equal(cells_save(&c, path, &m), OK);
        size_t n = read_rows(path, row, ROWS_MAX);
        assert_int_equal(n, 1 + (times == 0 ? 1 : 2) * c.n);
        assert_null(json_get(row[0], "settings"));
        for (size_t i = 0; i < n; i++)
            cJSON_Delete(row[i]);
    }
    unlink(path);
    rmdir(dir);
    cells_fini(&c);
    records_close(s.r);
}

static size_t count_tasks(cJSON **row, size_t n, const char *tasks)
{
    size_t found = 0;
    for (size_t i = 0; i < n; i++) {
        found += is_text(row[i], "tasks", tasks);
        cJSON_Delete(row[i]);
    }
    return found;
}

/* All of some tasks and all of others are two things, whatever their order. */
static void all_is_of_its_tasks(void **state)
{
    (void)state;
    enum { ROWS_MAX = 1000 };
    static const enum task order[][2] = {
        {TASK_A, TASK_B2}, {TASK_B2, TASK_A}, {TASK_A, TASK_F}};
    struct setup s, other;
    struct errmsg m = {""};
    char dir[] = "/tmp/ebb-cells-XXXXXX", path[64];
    cJSON *row[ROWS_MAX];
    size_t n_first = 0;
    setup_init(&s, 0);
    setup_init_with(&other, 0, TASK_F);
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/out.json", dir);
    for (int i = 0; i < 3; i++) {
        struct setup *x = i < 2 ? &s : &other;
        memcpy(x->task, order[i], sizeof(x->task));
        struct cells c = compute(x);
        assert_int_equal(cells_save(&c, path, &m), OK);
        cells_fini(&c);
        size_t n = read_rows(path, row, ROWS_MAX);
        size_t n_now = count_tasks(row, n, "A,B2");
        n_first = i == 0 ? n_now : n_first;
        assert_true(n_now > 0 && n_now == n_first);
        n = read_rows(path, row, ROWS_MAX);
        assert_int_equal(count_tasks(row, n, "A,F") > 0, i == 2);
    }
    unlink(path);
    rmdir(dir);
    records_close(s.r);
    records_close(other.r);
}

static void a_file_of_something_else_is_told(void **state)
{
    (void)state;
    char dir[] = "/tmp/ebb-cells-XXXXXX", path[64];
    struct errmsg m = {""};
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/out.json", dir);
    assert_int_equal(file_replace(path, "{}\n[2]\n", 7, &m), OK);
    assert_int_equal(cells_check_file(path, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "line 2"));
    unlink(path);
    rmdir(dir);
}

static size_t count(const char *in, const char *what)
{
    size_t n = 0;
    for (const char *p = strstr(in, what); p != NULL; p = strstr(p + 1, what))
        n++;
    return n;
}

/* The table's text; free() it. */
static char *printed(const struct setup *s)
{
    char *text = NULL;
    size_t n = 0;
    struct cells c = compute(s);
    FILE *to = open_memstream(&text, &n);
    assert_non_null(to);
    cells_print(&c, to);
    fclose(to);
    cells_fini(&c);
    return text;
}

static void the_table_names_every_cell(void **state)
{
    (void)state;
    struct setup s;
    setup_init(&s, 4);
    s.in.n_docs = DOCS_MAX;
    char *text = printed(&s);
    assert_non_null(strstr(text, "model too weak"));
    const char *line = strstr(text, "\nkeydiff ");
    assert_non_null(line++);
    /* Better than the best other in kl, as good in nll. */
    assert_non_null(strstr(line, "4.000 ["));
    assert_true(strstr(line, "]*") < strstr(line, "\n"));
    const char *knorm = strstr(text, "knorm");
    assert_true(strstr(knorm, "]*") > strstr(knorm, "\n"));
    /* One line for each task and all. */
    char *merges = strstr(text, "merging minus dropping");
    char *against = strstr(text, "\nminus random\n");
    assert_non_null(against);
    *against++ = '\0';
    assert_int_equal(count(merges, "keydiff+merge"), 3);
    assert_int_equal(count(merges, "-2.0000 [-2.0000, -2.0000]*"), 3);
    assert_int_equal(count(merges, " 35.0%  0.00   7.00"), 3);
    assert_int_equal(count(merges, "model too weak"), 2);
    /* All but random itself and full, which has another budget. */
    assert_int_equal(count(against, " 25.00%"), 3 * 3);
    assert_int_equal(count(against, "-0.5000 [-0.5000, -0.5000]*"), 3);
    assert_int_equal(count(against, "-2.5000 [-2.5000, -2.5000]*"), 3);
    assert_int_equal(count(against, "model too weak"), 3 * 2);
    free(text);
    s.in.against = NULL;
    text = printed(&s);
    assert_null(strstr(text, "minus random"));
    free(text);
    records_close(s.r);
}

/* The same with a document less than a star needs. */
static void few_documents_are_not_beyond_doubt(void **state)
{
    (void)state;
    struct setup s;
    setup_init(&s, 4);
    s.in.n_docs = DOCS_MAX - 1;
    char *text = printed(&s);
    assert_null(strstr(text, "]*"));
    assert_non_null(strstr(text, "8 documents or more"));
    free(text);
    records_close(s.r);
}

/* Over all tasks documents are drawn within each: what differs between tasks
 * only, here 3 from one to the other, is no matter of chance. */
static void tasks_are_drawn_apart(void **state)
{
    (void)state;
    struct setup s;
    struct errmsg m = {""};
    setup_init(&s, 0);
    records_close(s.r);
    const struct records_keys keys = {"k", "g"};
    assert_int_equal(records_open(&s.r, NULL, &keys, &m), OK);
    s.in.records = s.r;
    s.in.n_choices = 2;
    for (int i = 0; i < 2 * 2 * DOCS; i++) {
        struct record r = {.task = s.task[i % 2],
                           .doc = (uint32_t)i / 4,
                           .budget = s.choice[i / 2 % 2].budget};
        memcpy(r.policy, s.choice[i / 2 % 2].name, sizeof(r.policy));
        r.figures.metric[METRIC_KL] = i % 2 == 0 ? 1 : 4;
        assert_int_equal(records_add(s.r, &r, &m), OK);
    }
    struct cells c = compute(&s);
    const struct cells_row *row = cells_find(&c, "all", &s.choice[1], "kl");
    assert_true(near(row->value.mean, 2.5) && near(row->value.lo, 2.5) &&
                near(row->value.hi, 2.5));
    cells_fini(&c);
    records_close(s.r);
}

/* A point for every cell of a policy, in every chart; nothing from outside. */
static void the_page_shows_every_cell(void **state)
{
    (void)state;
    struct setup s;
    struct errmsg m = {""};
    struct buf page = {0};
    char dir[] = "/tmp/ebb-cells-XXXXXX", path[64];
    setup_init(&s, 3);
    s.in.model = "a<b>&c";
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/out.html", dir);
    struct cells c = compute(&s);
    assert_int_equal(cells_save_html(&c, path, &m), OK);
    assert_int_equal(file_read_all(&page, path, 1 << 24, &m), OK);
    /* kl and nll of A, B2 and all; em of B2 and all. Five policy cells. */
    assert_int_equal(count(page.data, "<svg"), 8);
    assert_int_equal(count(page.data, "</svg>"), 8);
    assert_int_equal(count(page.data, "<circle"), 8 * 5);
    /* Of each task and all: the cells, the merges, and minus random. */
    assert_int_equal(count(page.data, "<table"), 9);
    assert_int_equal(count(page.data, "Minus random"), 3);
    assert_int_equal(count(page.data, "<td>-0.5000 <small>[-0.5000, -0.5000]"),
                     3);
    assert_int_equal(count(page.data, "http"), 0);
    assert_int_equal(count(page.data, "nan"), 0);
    assert_int_equal(count(page.data, "inf\""), 0);
    assert_non_null(strstr(page.data, "a&lt;b>&amp;c"));
    buf_fini(&page);
    unlink(path);
    rmdir(dir);
    cells_fini(&c);
    records_close(s.r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(means_are_over_documents),
        cmocka_unit_test(differences_are_paired),
        cmocka_unit_test(the_best_other_has_the_same_budget),
        cmocka_unit_test(the_oracle_competes_with_none),
        cmocka_unit_test(a_merge_is_compared_with_dropping),
        cmocka_unit_test(normalised_is_between_the_ends),
        cmocka_unit_test(a_weak_model_is_told),
        cmocka_unit_test(rows_are_lines_of_json),
        cmocka_unit_test(other_settings_are_other_rows),
        cmocka_unit_test(all_is_of_its_tasks),
        cmocka_unit_test(a_file_of_something_else_is_told),
        cmocka_unit_test(the_table_names_every_cell),
        cmocka_unit_test(few_documents_are_not_beyond_doubt),
        cmocka_unit_test(tasks_are_drawn_apart),
        cmocka_unit_test(the_page_shows_every_cell)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
