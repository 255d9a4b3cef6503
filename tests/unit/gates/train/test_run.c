/* Training runs: one that was killed ends with the same gates as one that was
 * not, and a checkpoint of another run is refused. */
#include "tests/unit/gates/train/tiny.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"
#include "base/safetensors.h"
#include "gates/train/run.h"
#include "tests/unit/killed.h"

enum { WIDTH = 6, TEXT_BYTES = 20000, STEPS = 12 };

struct setup {
    struct workers *k;
    struct mat *mat;
    struct frozen *f;
    struct gate *g;
    struct tokenizer *t;
    struct mix *x;
    char dir[64], checkpoint[96], log[96], other[96];
    struct train_options o;
};

static void setup_init(struct setup *s, int n_threads)
{
    struct rng r;
    rng_seed(&r, 7);
    memset(s, 0, sizeof(*s));
    snprintf(s->dir, sizeof(s->dir), "/tmp/ebb-train-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    snprintf(s->checkpoint, sizeof(s->checkpoint), "%s/checkpoint", s->dir);
    snprintf(s->log, sizeof(s->log), "%s/log.jsonl", s->dir);
    snprintf(s->other, sizeof(s->other), "%s/other.jsonl", s->dir);
    assert_int_equal(workers_new(&s->k, n_threads, NULL), OK);
    assert_int_equal(mat_new(&s->mat, s->k, NULL), OK);
    s->f = tiny_model(&TINY_LLAMA, &r);
    struct gate_shape gs = {TINY_LLAMA.n_layers, TINY_LLAMA.n_embd,
                            TINY_LLAMA.n_kv_heads, WIDTH, GATE_RG10};
    assert_int_equal(gate_new(&s->g, &gs, NULL), OK);
    s->t = tiny_tokenizer(false);
    struct mix_options mo = {
        .tokenizer = s->t, .share = {2, 1, 1, 1, 1}, .seed = 1};
    assert_int_equal(mix_new(&s->x, &mo, NULL), OK);
    char *text = tiny_text(TEXT_BYTES, 3);
    assert_int_equal(mix_add_text(s->x, text, TEXT_BYTES, NULL), OK);
    free(text);
    s->o = (struct train_options){.steps = STEPS,
                                  .warm_up = 2,
                                  .tokens = 80,
                                  .memory = 8,
                                  .weight = 1,
                                  .ntp_weight = 1,
                                  .lr = 1e-3f,
                                  .seed = 1,
                                  .identity = "model=a texts=b",
                                  .checkpoint = s->checkpoint,
                                  .log = s->log};
    train_init_gate(s->g, s->o.memory, s->o.seed);
}

static void setup_fini(struct setup *s)
{
    unlink(s->checkpoint);
    unlink(s->log);
    unlink(s->other);
    rmdir(s->dir);
    mix_free(s->x);
    tokenizer_free(s->t);
    gate_free(s->g);
    frozen_free(s->f);
    mat_free(s->mat);
    workers_free(s->k);
}

static enum err run(struct setup *s, struct errmsg *m)
{
    return train_run(s->g, s->f, s->x, &s->o, s->mat, m);
}

static void run_to_the_end(struct setup *s)
{
    struct errmsg m = {""};
    if (run(s, &m) != OK)
        fail_msg("%s", m.text);
}

/* Checks every line, and that its steps are 1 to n. */
static void check_log(const struct setup *s, int n)
{
    struct buf b = {0};
    struct errmsg m = {""};
    assert_int_equal(file_read_all(&b, s->log, 1 << 20, &m), OK);
    char *line = b.data;
    int step = 0;
    while (line < b.data + b.len) {
        cJSON *json = NULL;
        char *end = strchr(line, '\n');
        assert_non_null(end);
        if (json_parse(&json, line, (size_t)(end - line), &m) != OK)
            fail_msg("%s in %.*s", m.text, (int)(end - line), line);
        static const char *const keys[] = {"kl",  "ntp",    "teacher_ntp",
                                           "cap", "alive",  "grad_norm",
                                           "lr",  "seconds"};
        for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
            assert_true(cJSON_IsNumber(json_get(json, keys[i])));
        assert_true(cJSON_IsString(json_get(json, "kind")));
        assert_int_equal(json_get(json, "step")->valueint, ++step);
        cJSON_Delete(json);
        line = end + 1;
    }
    assert_int_equal(step, n);
    buf_fini(&b);
}

static void first_gates_keep_entries_for_about_their_memory(void **state)
{
    (void)state;
    struct setup s;
    double sum = 0.0, squares = 0.0;
    setup_init(&s, 1);
    const struct gate_parts *p = &s.g->parts;
    size_t n = 0;
    for (uint32_t l = 0; l < s.g->shape.n_layers; l++) {
        const float *w = gate_layer(s.g, l);
        for (size_t i = 0; i < p->c3; i++) {
            if ((i >= p->c1 && i < p->w2) || (i >= p->c2 && i < p->w3)) {
                assert_true(w[i] == 0.0f); /* biases */
                continue;
            }
            sum += (double)w[i];
            squares += (double)w[i] * (double)w[i];
            n++;
        }
        assert_memory_equal(w + p->w3, gate_layer(s.g, 0) + p->w3,
                            (p->n - p->w3) * sizeof(float));
        for (size_t i = p->c3; i < p->n; i++)
            assert_true(fabs((double)w[i] - log(16.0)) < 1e-6);
    }
    assert_true(fabs(sum / (double)n) < 0.003);
    assert_true(fabs(sqrt(squares / (double)n) - 0.02) < 0.002);
    setup_fini(&s);
}

/* Kills the run, as kill -9 does, after it has logged `after` lines. */
static void run_and_kill(struct setup *s, size_t after)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        /* The pool's threads are not in the child: it makes its own. */
        struct errmsg m;
        struct workers *k = NULL;
        struct mat *mat = NULL;
        if (workers_new(&k, 2, &m) != OK || mat_new(&mat, k, &m) != OK)
            _exit(1);
        enum err rc = train_run(s->g, s->f, s->x, &s->o, mat, &m);
        _exit(rc == OK ? 0 : 1);
    }
    kill_after_lines(pid, s->log, after);
}

static void a_killed_run_ends_with_the_same_gates(void **state)
{
    (void)state;
    struct setup whole, killed;
    setup_init(&whole, 2);
    run_to_the_end(&whole);
    check_log(&whole, STEPS);
    setup_init(&killed, 1);
    struct gate *first = killed.g;
    for (size_t after = 3; after <= 6; after += 3) {
        run_and_kill(&killed, after);
        /* Half a line, as a kill in the middle of a write leaves. */
        int fd = open(killed.log, O_WRONLY | O_APPEND);
        assert_true(fd >= 0);
        assert_int_equal(write(fd, "{\"step\":9,\"ki", 13), 13);
        close(fd);
    }
    run_to_the_end(&killed);
    assert_ptr_equal(killed.g, first);
    check_log(&killed, STEPS);
    assert_memory_equal(killed.g->p, whole.g->p,
                        gate_n_params(whole.g) * sizeof(float));
    /* Once more: there is nothing left to do. */
    train_init_gate(killed.g, 8, 1);
    run_to_the_end(&killed);
    check_log(&killed, STEPS);
    assert_memory_equal(killed.g->p, whole.g->p,
                        gate_n_params(whole.g) * sizeof(float));
    setup_fini(&killed);
    setup_fini(&whole);
}

static void a_stopped_run_continues(void **state)
{
    (void)state;
    struct setup whole, stopped;
    struct errmsg m = {""};
    atomic_bool stop = true;
    setup_init(&whole, 1);
    whole.o.log = NULL;
    whole.o.keep_bytes = 1 << 20; /* changes nothing */
    whole.o.checkpoint = NULL;
    run_to_the_end(&whole);
    assert_int_not_equal(access(whole.checkpoint, F_OK), 0);
    setup_init(&stopped, 3);
    stopped.o.checkpoint_every = 3600;
    stopped.o.stop = &stop;
    for (int i = 1; i < STEPS; i++) {
        train_init_gate(stopped.g, 8, 1); /* the checkpoint's count instead */
        assert_int_equal(run(&stopped, &m), ERR_CANCELLED);
        assert_non_null(strstr(m.text, "of 12"));
        check_log(&stopped, i);
    }
    run_to_the_end(&stopped); /* the last step: nothing is left to stop */
    check_log(&stopped, STEPS);
    assert_memory_equal(stopped.g->p, whole.g->p,
                        gate_n_params(whole.g) * sizeof(float));
    setup_fini(&stopped);
    setup_fini(&whole);
}

static void check_refused(struct setup *s, const char *part)
{
    struct errmsg m = {""};
    enum err rc = run(s, &m);
    if (rc != ERR_CONFLICT || strstr(m.text, part) == NULL)
        fail_msg("%d: %s", (int)rc, m.text);
}

static void a_checkpoint_of_another_run_is_refused(void **state)
{
    (void)state;
    struct setup s;
    setup_init(&s, 1);
    s.o.steps = 2;
    run_to_the_end(&s);
    const struct train_options o = s.o;
    s.o.steps = 3;
    check_refused(&s, "made with steps=2, now it is steps=3");
    s.o = o;
    s.o.lr = 2e-3f;
    check_refused(&s, "now it is lr=0.002");
    s.o = o;
    s.o.identity = "model=a texts=c";
    check_refused(&s, "made with texts=b, now it is texts=c");
    s.o = o;
    s.o.memory = 9;
    check_refused(&s, "memory=9");
    s.o = o;
    s.o.seed = 2;
    check_refused(&s, "seed=2");
    s.o = o;
    run_to_the_end(&s);
    setup_fini(&s);
}

static void write_file(const char *path, const char *text)
{
    assert_int_equal(file_replace(path, text, strlen(text), NULL), OK);
}

static void a_file_that_is_no_checkpoint_is_refused(void **state)
{
    (void)state;
    struct setup s;
    struct errmsg m = {""};
    setup_init(&s, 1);
    write_file(s.checkpoint, "something else");
    assert_int_equal(run(&s, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, s.checkpoint));
    const struct safetensors_string meta = {"kind", "x"};
    assert_int_equal(safetensors_write(s.checkpoint, &meta, 1, NULL, 0, NULL),
                     OK);
    assert_int_equal(run(&s, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "no checkpoint"));
    setup_fini(&s);
}

/* Its lines would be cut off, and steps would stand there twice. */
static void a_log_of_another_run_is_refused(void **state)
{
    (void)state;
    struct setup s;
    struct errmsg m = {""};
    setup_init(&s, 1);
    s.o.steps = 1;
    FILE *other = fopen(s.log, "ae");
    assert_non_null(other);
    assert_int_equal(file_lock_open(fileno(other), s.log, NULL), OK);
    assert_int_equal(run(&s, &m), ERR_BUSY);
    assert_non_null(strstr(m.text, "another training run writes to /tmp/"));
    assert_non_null(strstr(m.text, "log.jsonl"));
    fclose(other);
    run_to_the_end(&s);
    check_log(&s, 1);
    /* Runs may throw their lines away side by side. */
    s.o.log = "/dev/null";
    other = fopen(s.o.log, "ae");
    assert_non_null(other);
    if (file_lock_open(fileno(other), s.o.log, NULL) == OK) {
        unlink(s.checkpoint);
        run_to_the_end(&s);
    }
    fclose(other);
    setup_fini(&s);
}

static void lines_of_earlier_runs_stay_in_the_log(void **state)
{
    (void)state;
    struct setup s;
    struct buf b = {0};
    struct errmsg m = {""};
    atomic_bool stop = true;
    static const char earlier[] = "{\"step\":500,\"kind\":\"plain\"}\n";
    setup_init(&s, 1);
    write_file(s.log, earlier);
    /* Killed before it saved anything but its beginning, and long before its
     * end, however late the kill comes. */
    s.o.steps = 1000000;
    s.o.checkpoint_every = 3600;
    run_and_kill(&s, 3);
    s.o.stop = &stop;
    assert_int_equal(run(&s, &m), ERR_CANCELLED);
    assert_int_equal(run(&s, &m), ERR_CANCELLED);
    assert_int_equal(file_read_all(&b, s.log, 1 << 20, &m), OK);
    assert_memory_equal(b.data, earlier, sizeof(earlier) - 1);
    const char *line = b.data + sizeof(earlier) - 1;
    assert_memory_equal(line, "{\"step\":1,", 10);
    line = strchr(line, '\n') + 1;
    assert_memory_equal(line, "{\"step\":2,", 10);
    assert_ptr_equal(strchr(line, '\n') + 1, b.data + b.len);
    buf_fini(&b);
    /* Another log is begun, not cut. */
    s.o.log = s.other;
    write_file(s.other, earlier);
    assert_int_equal(run(&s, &m), ERR_CANCELLED);
    assert_int_equal(file_read_all(&b, s.other, 1 << 20, &m), OK);
    assert_memory_equal(b.data, earlier, sizeof(earlier) - 1);
    assert_memory_equal(b.data + sizeof(earlier) - 1, "{\"step\":3,", 10);
    buf_fini(&b);
    setup_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_gates_keep_entries_for_about_their_memory),
        cmocka_unit_test(a_killed_run_ends_with_the_same_gates),
        cmocka_unit_test(a_stopped_run_continues),
        cmocka_unit_test(a_checkpoint_of_another_run_is_refused),
        cmocka_unit_test(a_file_that_is_no_checkpoint_is_refused),
        cmocka_unit_test(lines_of_earlier_runs_stay_in_the_log),
        cmocka_unit_test(a_log_of_another_run_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
