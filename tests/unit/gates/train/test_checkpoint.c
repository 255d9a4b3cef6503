/* Checkpoints: what is written comes back, what is damaged or of another run
 * is refused, and gates alone can be had from one. */
#include "tests/unit/gates/train/tiny.h"

#include <stdio.h>
#include <unistd.h>

#include "gates/train/checkpoint.h"

enum { N = 2 * (3 * 4 + 3 + 3 * 3 + 3 + 1 * 3 + 1) };

static const char settings[] =
    "model=a mix=b layers=2 embd=4 heads=1 width=3 steps=9 lr=1";
static const struct gate_shape model = {
    .n_layers = 2, .n_embd = 4, .n_kv_heads = 1};

struct state {
    char path[64];
    float part[3][N];
    struct checkpoint c;
};

static void state_init(struct state *s)
{
    struct rng r;
    rng_seed(&r, 5);
    snprintf(s->path, sizeof(s->path), "/tmp/ebb-checkpoint-XXXXXX");
    int fd = mkstemp(s->path);
    assert_true(fd >= 0);
    close(fd);
    for (int i = 0; i < 3; i++)
        tiny_fill(s->part[i], N, 1.0f, &r);
    s->c = (struct checkpoint){.settings = settings,
                               .log = "log",
                               .log_bytes = 77,
                               .step = 5,
                               .n = N,
                               .gates = s->part[0],
                               .m1 = s->part[1],
                               .m2 = s->part[2]};
}

static void save(const struct state *s)
{
    assert_int_equal(checkpoint_write(s->path, &s->c, NULL), OK);
}

/* Where a reading run puts what it finds. */
struct place {
    float part[3][N];
    struct checkpoint c;
};

static enum err load(struct place *p, const struct state *s, const char *given,
                     const char *log, struct errmsg *m)
{
    memset(p, 0, sizeof(*p));
    p->c = (struct checkpoint){.settings = given,
                               .log = log,
                               .n = N,
                               .gates = p->part[0],
                               .m1 = p->part[1],
                               .m2 = p->part[2]};
    return checkpoint_read(&p->c, s->path, m);
}

static void what_is_written_comes_back(void **state)
{
    (void)state;
    struct state s;
    struct place p;
    state_init(&s);
    save(&s);
    assert_int_equal(load(&p, &s, settings, "log", NULL), OK);
    assert_memory_equal(p.part, s.part, sizeof(s.part));
    assert_int_equal(p.c.step, 5);
    assert_int_equal(p.c.log_bytes, 77);
    assert_int_equal(load(&p, &s, settings, "other", NULL), OK);
    assert_int_equal(p.c.log_bytes, -1);
    assert_int_equal(load(&p, &s, settings, NULL, NULL), OK);
    assert_int_equal(p.c.log_bytes, -1);
    unlink(s.path);
}

static void check_refused(const struct state *s, const char *given,
                          const char *why)
{
    struct errmsg m = {""};
    struct place p;
    enum err rc = load(&p, s, given, "log", &m);
    if (rc != ERR_CONFLICT || strstr(m.text, why) == NULL)
        fail_msg("%s: %d, %s", given, (int)rc, m.text);
}

static void another_setting_is_refused(void **state)
{
    (void)state;
    struct state s;
    state_init(&s);
    s.c.settings = "a=1 b=2";
    save(&s);
    check_refused(&s, "a=1 b=3", "made with b=2, now it is b=3");
    check_refused(&s, "a=1", "made with b=2, now it is nothing");
    check_refused(&s, "a=1 b=2 c=3", "made with nothing, now it is c=3");
    check_refused(&s, "a=1 b=22", "now it is b=22");
    check_refused(&s, "a=1 loss-positions=0.5 b=2", "is loss-positions=0.5");
    check_refused(&s, "a=1 answer-weight=0.5 b=2", "now it is answer-weight=");
    unlink(s.path);
}

/* Runs from before an option go on, as do runs that name its default. */
static void a_setting_that_changes_nothing_may_be_absent(void **state)
{
    (void)state;
    struct state s;
    struct place p;
    state_init(&s);
    s.c.settings = "a=1 b=2";
    save(&s);
    assert_int_equal(
        load(&p, &s, "a=1 answer-weight=0 loss-positions=1 b=2", "", NULL), OK);
    assert_int_equal(load(&p, &s, "a=1 b=2 answer-weight=0", "", NULL), OK);
    s.c.settings = "answer-weight=0 a=1 b=2";
    save(&s);
    assert_int_equal(load(&p, &s, "a=1 b=2", "", NULL), OK);
    unlink(s.path);
}

static void a_file_that_is_no_whole_checkpoint_is_refused(void **state)
{
    (void)state;
    struct state s;
    struct place p;
    struct errmsg m = {""};
    state_init(&s);
    s.c.n = N - 1;
    save(&s);
    assert_int_equal(load(&p, &s, settings, "log", &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "no whole 'gates'"));
    const struct safetensors_string meta = {"kind", "x"};
    assert_int_equal(safetensors_write(s.path, &meta, 1, NULL, 0, NULL), OK);
    assert_int_equal(load(&p, &s, settings, "log", &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "no checkpoint"));
    unlink(s.path);
}

/* The gates of the saved file for a model of shape `of`. */
static enum err gates(struct gate **out, const struct state *s,
                      const struct gate_shape *of, struct errmsg *m)
{
    struct safetensors *f = NULL;
    char text[256];
    save(s);
    assert_int_equal(safetensors_open(&f, s->path, NULL), OK);
    assert_true(checkpoint_is(f));
    checkpoint_describe(text, sizeof(text), f);
    assert_non_null(strstr(text, " step=5"));
    assert_memory_equal(text, s->c.settings, strlen(s->c.settings));
    enum err rc = checkpoint_gates(out, f, of, m);
    safetensors_close(f);
    unlink(s->path);
    return rc;
}

static void gates_alone_are_those_of_the_run(void **state)
{
    (void)state;
    struct state s;
    struct gate *g = NULL;
    state_init(&s);
    assert_int_equal(gates(&g, &s, &model, NULL), OK);
    assert_int_equal(g->shape.width, 3);
    assert_int_equal(g->shape.kind, GATE_RG10);
    assert_int_equal(gate_n_params(g), N);
    assert_memory_equal(g->p, s.part[0], sizeof(s.part[0]));
    gate_free(g);
}

static void check_gates_refused(const struct state *s, enum err want,
                                const char *why)
{
    struct errmsg m = {""};
    struct gate *g = NULL;
    enum err rc = gates(&g, s, &model, &m);
    assert_null(g);
    if (rc != want || strstr(m.text, why) == NULL)
        fail_msg("%s: %d, %s", s->c.settings, (int)rc, m.text);
}

static void gates_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    struct state s;
    state_init(&s);
    s.c.settings = "layers=2 embd=4 heads=2 width=3";
    check_gates_refused(&s, ERR_CONFLICT, "2 KV heads");
    s.c.settings = "layers=2 embd=4 heads=1 width=4";
    check_gates_refused(&s, ERR_INVAL, "no whole 'gates'");
    s.c.settings = "layers=2 embd=4 heads=1 width=4294967295";
    check_gates_refused(&s, ERR_INVAL, "no whole 'gates'");
    s.c.settings = "layers=2 embd=4 heads=1";
    check_gates_refused(&s, ERR_INVAL, "no whole 'gates'");
    s.c.settings = settings;
    s.part[0][7] = NAN;
    check_gates_refused(&s, ERR_INVAL, "not finite");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_comes_back),
        cmocka_unit_test(another_setting_is_refused),
        cmocka_unit_test(a_setting_that_changes_nothing_may_be_absent),
        cmocka_unit_test(a_file_that_is_no_whole_checkpoint_is_refused),
        cmocka_unit_test(gates_alone_are_those_of_the_run),
        cmocka_unit_test(gates_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
