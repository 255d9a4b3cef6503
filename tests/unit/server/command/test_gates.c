/* The command `ebb gates`, through its words and exit statuses. */
#include <fcntl.h>
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

#include "base/buf.h"
#include "base/file.h"
#include "base/rng.h"
#include "gates/gate_file.h"
#include "server/command/gates.h"
#include "server/command/model_file.h"

enum { WORDS_MAX = 32 };

struct run {
    char dir[64];
    int status;
    struct buf out, err;
};

static void run_init(struct run *r)
{
    memset(r, 0, sizeof(*r));
    snprintf(r->dir, sizeof(r->dir), "/tmp/ebb-gates-XXXXXX");
    assert_non_null(mkdtemp(r->dir));
}

static void run_fini(struct run *r)
{
    static const char *const names[] = {"out",
                                        "err",
                                        "text",
                                        "g.safetensors",
                                        "g.safetensors.checkpoint",
                                        "log",
                                        "rg.safetensors",
                                        "h.safetensors",
                                        "h.safetensors.checkpoint"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char path[128];
        snprintf(path, sizeof(path), "%s/%s", r->dir, names[i]);
        unlink(path);
    }
    assert_int_equal(rmdir(r->dir), 0);
    buf_fini(&r->out);
    buf_fini(&r->err);
}

/* Sends a stream into a file for as long as the command runs. */
static int redirect(int fd, const char *dir, const char *name)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    int saved = dup(fd);
    int to = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(saved >= 0 && to >= 0);
    assert_int_equal(dup2(to, fd), fd);
    close(to);
    return saved;
}

static void restore(int fd, int saved, struct run *r, struct buf *text,
                    const char *name)
{
    char path[128];
    assert_int_equal(dup2(saved, fd), fd);
    close(saved);
    snprintf(path, sizeof(path), "%s/%s", r->dir, name);
    buf_clear(text);
    assert_int_equal(file_read_all(text, path, 1 << 20, NULL), OK);
    assert_int_equal(buf_putc(text, '\0'), OK);
}

/* Words of one line; "@" stands for the folder of this run. */
static void run(struct run *r, const char *line, const atomic_bool *stop)
{
    char words[WORDS_MAX][512], *argv[WORDS_MAX];
    int argc = 0;
    while (*line != '\0') {
        size_t n = strcspn(line, " ");
        if (line[0] == '@')
            snprintf(words[argc], 512, "%s%.*s", r->dir, (int)n - 1, line + 1);
        else
            snprintf(words[argc], 512, "%.*s", (int)n, line);
        argv[argc] = words[argc];
        argc++;
        line += n + (line[n] == ' ');
    }
    fflush(stdout);
    fflush(stderr);
    int out = redirect(1, r->dir, "out"), err = redirect(2, r->dir, "err");
    r->status = gates_command(argc, argv, stop);
    fflush(stdout);
    fflush(stderr);
    restore(1, out, r, &r->out, "out");
    restore(2, err, r, &r->err, "err");
}

static void check(struct run *r, const char *line, int status, const char *out,
                  const char *err)
{
    run(r, line, NULL);
    if (r->status != status || strstr(r->out.data, out) == NULL ||
        strstr(r->err.data, err) == NULL)
        fail_msg("%s\n gave %d\nstdout: %s\nstderr: %s", line, r->status,
                 r->out.data, r->err.data);
}

static void wrong_words_end_with_status_2(void **state)
{
    (void)state;
    struct run r;
    run_init(&r);
    check(&r, "", 2, "", "ebb gates train");
    check(&r, "trian", 2, "", "no command \"trian\"");
    check(&r, "train --modle x", 2, "", "nearest known one is '--model'");
    check(&r, "train", 2, "", "--model FILE is needed");
    check(&r, "train --model m --out o", 2, "", "--text FILE... is needed");
    check(&r, "train --model m --text t", 2, "", "--out FILE is needed");
    check(&r, "train --model m --out o --steps 0", 2, "",
          "--init FILE is needed");
    check(&r, "train --model m --out o --steps 0 --init 1 2 3 4 5 6 7 8 9", 2,
          "", "--init: 9 files are more than 8");
    check(&r, "train --model m --text t --out o --f16 --f32", 2, "",
          "exclude each other");
    check(&r, "train --model m --text t --out o --lr 0", 2, "", "--lr");
    check(&r, "train --model m --text t --out o --loss-positions 0", 2, "",
          "--loss-positions: it must be more than 0");
    check(&r, "train --model m --text t --out o --lr 7", 2, "",
          "--lr: '7' is out of range");
    check(&r, "train --model m --text t --out o --steps 5 --warm-up 6", 2, "",
          "--warm-up: 6 is more than the 5 steps");
    check(&r, "train --model m --text t --out @/none/o", 2, "",
          "the folder of");
    check(&r, "train --model m --text t --out ./t", 2, "",
          "--out ./t would overwrite what is read for --text t");
    check(&r, "train --model m --text t --out m", 2, "",
          "--out m would overwrite what is read for --model m");
    check(&r, "train --model m --text t --out o --log m", 2, "",
          "--log m would overwrite what is read for --model m");
    check(&r, "train --model m --text t --out o --checkpoint o", 2, "",
          "--checkpoint o would overwrite what is written for --out o");
    check(&r, "train --model m --text t --out o --log @/", 2, "",
          "is a folder");
    check(&r, "train --model m word --text t --out o", 2, "",
          "unexpected argument 'word'");
    check(&r, "show", 2, "", "one file of gates is needed");
    check(&r, "show a b", 2, "", "2 are given");
    check(&r, "show a --text t", 2, "", "--text needs --model");
    run_fini(&r);
}

/* Shares of kinds: whole numbers, each kind at most once. */
static void a_wrong_mix_is_told(void **state)
{
    (void)state;
    static const char *const wrong[][2] = {
        {"plian=4", "no kind 'plian'; the nearest is 'plain'"},
        {"=4", "no kind ''"},
        {"plain", "plain needs a share"},
        {"plain=", "plain: '' is not a whole number"},
        {"plain=x", "plain: 'x' is not a whole number"},
        {"plain=4x", "plain: '4x' is not a whole number"},
        {"plain=1.5", "plain: '1.5' is not a whole number"},
        {"copy=nan", "copy: 'nan' is not a whole number"},
        {"copy=inf", "copy: 'inf' is not a whole number"},
        {"plain=1e400", "plain: '1e400' is not a whole number"},
        {"plain=99999999999999999999", "is not a whole number"},
        {"plain=-4", "plain: '-4' is out of range; it must be from 0 to"},
        {"plain=1000001", "out of range; it must be from 0 to 1000000"},
        {"plain=1,copy=2,plain=3", "plain is named twice"},
        {"plain=0,plain=1", "plain is named twice"},
        {"plain=1,,copy=2", "'plain=1,,copy=2' names nothing at one place"},
        {"plain=1,", "'plain=1,' names nothing at one place"},
        {",", "',' names nothing at one place"},
        {"", "--mix: the value is empty"},
        {"plain=0,copy=0", "all shares are zero"},
    };
    struct run r;
    run_init(&r);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        char line[128];
        snprintf(line, sizeof(line),
                 "train --model m --text t --out @/o --mix=%s", wrong[i][0]);
        check(&r, line, 2, "", "--mix: ");
        check(&r, line, 2, "", wrong[i][1]);
    }
    run_fini(&r);
}

static void help_is_no_error(void **state)
{
    (void)state;
    struct run r;
    run_init(&r);
    check(&r, "--help", 0, "ebb gates show", "");
    check(&r, "train --help", 0, "--checkpoint-every TIME", "");
    check(&r, "show -h", 0, "Usage: ebb gates show FILE", "");
    run_fini(&r);
}

static void what_is_not_there_is_named_with_status_1(void **state)
{
    (void)state;
    struct run r;
    run_init(&r);
    check(&r, "show @/nothing", 1, "", "/nothing");
    check(&r, "train --model @/none.gguf --text t --out @/g.safetensors", 1, "",
          "/none.gguf");
    check(&r, "train --model @/none.gguf --text t --out @/", 1, "",
          "is not a regular file");
    run_fini(&r);
}

static void write_text(const struct run *r)
{
    static const char *const words[] = {"The",  "sea",  "was", "calm",
                                        "and",  "grey", "as",  "the",
                                        "boat", "left", "in",  "spring."};
    struct buf b = {0};
    struct rng rng;
    char path[128];
    rng_seed(&rng, 1);
    while (b.len < 1500)
        assert_int_equal(buf_printf(&b, "%s ", words[rng_below(&rng, 12)]), OK);
    snprintf(path, sizeof(path), "%s/text", r->dir);
    assert_int_equal(file_replace(path, b.data, b.len, NULL), OK);
    buf_fini(&b);
}

static bool default_model(char path[4096])
{
    const char *dir = getenv("EBB_TEST_MODELS");
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    static const char name[] = "SmolLM2-135M-Instruct.Q4_1.gguf";
    if (dir)
        snprintf(path, 4096, "%s/%s", dir, name);
    else if (cache && cache[0])
        snprintf(path, 4096, "%s/ebb/models/%s", cache, name);
    else
        snprintf(path, 4096, "%s/.cache/ebb/models/%s", home ? home : "", name);
    if (access(path, R_OK) == 0)
        return true;
    fprintf(stderr, "SKIPPED: no model file %s\n", path);
    return false;
}

/* Its checkpoint gives gates at once, and stays what it was. */
static void gates_of_a_stopped_run(struct run *r, const char *model)
{
    char line[8192];
    snprintf(line, sizeof(line),
             "train --model %s --steps 0 --init @/g.safetensors.checkpoint "
             "--out @/g.safetensors",
             model);
    check(r, line, 0, "wrote", "");
    check(r, "show @/g.safetensors", 0, "train_init_run: model=", "");
    assert_non_null(strstr(r->out.data, "tokens=64 memory=8 "));
    assert_non_null(strstr(r->out.data, " step=1\n"));
    assert_non_null(strstr(r->out.data, "width 8,"));
    static const char *const parts[] = {
        "train_steps: 1\n", "train_memory: 8\n", "train_context: 64\n",
        "train_mix: plain=1,chat=1\n", "train_texts: text "};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (strstr(r->out.data, parts[i]) == NULL)
            fail_msg("no '%s' in %s", parts[i], r->out.data);
    assert_null(strstr(r->out.data, "train_init_steps"));
    /* Texts that are named must be those of the run. */
    snprintf(line, sizeof(line),
             "train --model %s --steps 0 --init @/g.safetensors.checkpoint "
             "--out @/g.safetensors --text @/text",
             model);
    check(r, line, 0, "wrote", "");
    line[strlen(line) - 4] = '\0'; /* "@/": a folder */
    check(r, line, 1, "", "is not a regular file");
    snprintf(line, sizeof(line),
             "train --model %s --steps 0 --init @/g.safetensors.checkpoint "
             "--out @/g.safetensors --text @/text @/text",
             model);
    check(r, line, 1, "", "no file of --init learned from exactly these");
}

static void a_models_file_is_opened_whole_or_not_at_all(void **state)
{
    (void)state;
    static const struct model_file nothing;
    struct model_file f = nothing;
    struct errmsg m = {""};
    char path[4096];
    assert_int_not_equal(model_file_open(&f, "/nothing.gguf", 2, &m), OK);
    assert_non_null(strstr(m.text, "/nothing.gguf"));
    assert_memory_equal(&f, &nothing, sizeof(f));
    model_file_close(&f);
    if (!default_model(path))
        skip();
    assert_int_equal(model_file_open(&f, path, 2, &m), OK);
    assert_int_equal(workers_count(f.workers), 2);
    assert_non_null(f.gguf);
    assert_non_null(f.tokenizer);
    assert_non_null(f.prompt); /* its template is one that we know */
    model_file_close(&f);
    assert_memory_equal(&f, &nothing, sizeof(f));
    assert_int_equal(model_file_open(&f, path, 0, &m), OK);
    assert_int_equal(workers_count(f.workers), workers_cpus());
    model_file_close(&f);
}

/* One pass over the real thing: training stops, goes on, and its gates are
 * shown, with two steps of 64 tokens. */
static void gates_of_the_default_model_are_trained_and_shown(void **state)
{
    (void)state;
    struct run r;
    char model[4096], line[8192];
    atomic_bool stop = true;
    if (!default_model(model))
        skip();
    run_init(&r);
    write_text(&r);
    snprintf(line, sizeof(line),
             "train --model %s --text @/text --out @/g.safetensors --steps 2 "
             "--tokens 64 --memory 8 --width 8 --log @/log --mix "
             "chat=1,plain=1 --threads 2",
             model);
    run(&r, line, &stop);
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err.data, "stopped after step 1 of 2"));
    assert_non_null(strstr(r.err.data, "g.safetensors.checkpoint"));
    gates_of_a_stopped_run(&r, model);
    check(&r, line, 0, "wrote", "step 1 of 2");
    check(&r, "show @/g.safetensors", 0,
          "gates of type rg10 for 30 layers x 3 KV heads, inputs of 576, width "
          "8",
          "");
    static const char *const parts[] = {
        "format: pt",         "gate: rg10",
        "base_model: ",       "m: 8",
        "train_memory: 8",    "train_context: 64",
        "train_steps: 2",     "base_fingerprint",
        "122 tensors of F16", "train_texts: text "};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (strstr(r.out.data, parts[i]) == NULL)
            fail_msg("no '%s' in %s", parts[i], r.out.data);
    snprintf(line, sizeof(line),
             "show @/g.safetensors --model %s --text @/text --tokens 64",
             model);
    check(&r, line, 0, "fits", "");
    /* c3 = ln 16, hardly trained: beta = 1 / (1 + 1/16) = 0.941 in all. */
    assert_non_null(strstr(r.out.data, "beta over 320 tokens"));
    char *all = strstr(r.out.data, "   all ");
    assert_non_null(all);
    double mean = strtod(all + 6, NULL);
    assert_true(mean > 0.93 && mean < 0.95);
    /* From these gates on, with fresh moments. */
    snprintf(line, sizeof(line),
             "train --model %s --text @/text --out @/h.safetensors --steps 1 "
             "--tokens 64 --init @/g.safetensors --f32 --loss-positions 0.5",
             model);
    check(&r, line, 0, "wrote", "");
    check(&r, "show @/h.safetensors", 0, "train_init_sha256: ", "");
    assert_non_null(strstr(r.out.data, "train_steps: 1\n"));
    assert_non_null(strstr(r.out.data, "train_init_steps: 2\n"));
    assert_non_null(strstr(r.out.data, "width 8,"));
    assert_non_null(strstr(r.out.data, "tensors of F32"));
    /* Its checkpoint knows that too. */
    snprintf(line, sizeof(line),
             "train --model %s --steps 0 --out @/g.safetensors --init "
             "@/h.safetensors.checkpoint",
             model);
    check(&r, line, 0, "wrote", "");
    check(&r, "show @/g.safetensors", 0, "train_init_steps: 2\n", "");
    run_fini(&r);
}

static void save_constant(const struct run *r, const char *name, uint32_t width,
                          float value)
{
    char path[128];
    struct gate *g = NULL;
    struct gate_shape s = {30, 576, 3, width, GATE_RG10};
    struct safetensors_string meta[] = {{"gate", "rg10"}};
    snprintf(path, sizeof(path), "%s/%s", r->dir, name);
    assert_int_equal(gate_new(&g, &s, NULL), OK);
    for (size_t i = 0; i < gate_n_params(g); i++)
        g->p[i] = value;
    assert_int_equal(gate_save(g, path, false, meta, 1, NULL), OK);
    gate_free(g);
}

static void several_gates_start_as_their_mean(void **state)
{
    (void)state;
    struct run r;
    struct gate *g = NULL;
    char model[4096], line[8192], path[128];
    if (!default_model(model))
        skip();
    run_init(&r);
    save_constant(&r, "g.safetensors", 4, 1.0f);
    save_constant(&r, "rg.safetensors", 4, 4.0f);
    snprintf(line, sizeof(line),
             "train --model %s --steps 0 --out @/h.safetensors --init "
             "@/g.safetensors @/rg.safetensors @/g.safetensors",
             model);
    check(&r, line, 0, "wrote", "");
    snprintf(path, sizeof(path), "%s/h.safetensors", r.dir);
    assert_int_equal(gate_load(&g, path, NULL, NULL), OK);
    for (size_t i = 0; i < gate_n_params(g); i++)
        assert_true(g->p[i] == 2.0f);
    gate_free(g);
    check(&r, "show @/h.safetensors", 0, " + ", "");
    assert_null(strstr(r.out.data, "train_steps")); /* nobody knows them */
    save_constant(&r, "rg.safetensors", 8, 4.0f);
    check(&r, line, 1, "",
          "rg.safetensors: its gates are 8 wide, those before it 4");
    run_fini(&r);
}

/* By both commands that read texts. */
static void a_text_that_is_not_utf8_is_named(void **state)
{
    (void)state;
    struct run r;
    char model[4096], line[8192], path[128], text[1500];
    if (!default_model(model))
        skip();
    run_init(&r);
    memset(text, 'a', sizeof(text));
    memcpy(text + 1400, "caf\xE9", 4);
    snprintf(path, sizeof(path), "%s/text", r.dir);
    assert_int_equal(file_replace(path, text, sizeof(text), NULL), OK);
    save_constant(&r, "g.safetensors", 4, 1.0f);
    snprintf(line, sizeof(line),
             "train --model %s --text @/text --out @/h.safetensors --steps 1 "
             "--tokens 64",
             model);
    check(&r, line, 1, "", "/text: it is not UTF-8 at byte 1403");
    snprintf(line, sizeof(line),
             "show @/g.safetensors --model %s --text @/text", model);
    check(&r, line, 1, "", "/text: it is not UTF-8 at byte 1403");
    run_fini(&r);
}

/* Two commands that write to one place: the second is told, with exit status
 * 1, before it reads anything. */
static void a_second_run_of_one_output_is_refused(void **state)
{
    (void)state;
    static const char *const held[][2] = {
        {"g.safetensors.lock", "--out @/g.safetensors"},
        {"g.safetensors.checkpoint.lock",
         "--out @/h.safetensors --checkpoint @/g.safetensors.checkpoint"},
        {"g.safetensors.lock", "--out @/g.safetensors --steps 0 --init x"}};
    struct run r;
    char path[128], line[256];
    run_init(&r);
    for (size_t i = 0; i < sizeof(held) / sizeof(held[0]); i++) {
        int fd = -1;
        snprintf(path, sizeof(path), "%s/%s", r.dir, held[i][0]);
        snprintf(line, sizeof(line), "train --model @/m.gguf --text t %s",
                 held[i][1]);
        assert_int_equal(file_lock(&fd, path, NULL), OK);
        check(&r, line, 1, "", "another training run writes to /tmp/");
        path[strlen(path) - 5] = '\0'; /* without ".lock" */
        assert_non_null(strstr(r.err.data, path));
        path[strlen(path)] = '.';
        file_unlock(fd, path);
        /* Not any more; and of no run a lock file is left (run_fini()). */
        check(&r, line, 1, "", "cannot open /tmp/");
    }
    run_fini(&r);
}

static void gates_of_another_model_do_not_fit(void **state)
{
    (void)state;
    struct run r;
    struct gate *g = NULL;
    char model[4096], line[8192], path[128];
    if (!default_model(model))
        skip();
    run_init(&r);
    snprintf(path, sizeof(path), "%s/rg.safetensors", r.dir);
    struct gate_shape s = {30, 576, 5, 4, GATE_RG};
    assert_int_equal(gate_new(&g, &s, NULL), OK);
    struct safetensors_string meta[] = {{"gate", "rg"}, {"base_model", "\x1b"}};
    assert_int_equal(gate_save(g, path, false, meta, 2, NULL), OK);
    gate_free(g);
    snprintf(line, sizeof(line), "show @/rg.safetensors --model %s", model);
    check(&r, line, 1, "base_model: ?", "does not fit");
    assert_non_null(strstr(r.err.data, "5 KV heads; the model has 30 layers, "
                                       "inputs of 576 and 3 KV heads"));
    s.n_kv_heads = 3;
    assert_int_equal(gate_new(&g, &s, NULL), OK);
    assert_int_equal(gate_save(g, path, false, meta, 2, NULL), OK);
    write_text(&r);
    snprintf(line, sizeof(line),
             "show @/rg.safetensors --model %s --text @/text --tokens 64",
             model);
    check(&r, line, 0, "0.500000", ""); /* zeros: beta is a half */
    snprintf(line, sizeof(line),
             "train --model %s --text @/text --out @/g.safetensors --init "
             "@/rg.safetensors",
             model);
    check(&r, line, 1, "", "of type rg; rg10 can be trained");
    meta[1] = (struct safetensors_string){"base_fingerprint", "00"};
    assert_int_equal(gate_save(g, path, false, meta, 2, NULL), OK);
    check(&r, line, 1, "", "trained for another model");
    gate_free(g);
    run_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_words_end_with_status_2),
        cmocka_unit_test(a_wrong_mix_is_told),
        cmocka_unit_test(help_is_no_error),
        cmocka_unit_test(what_is_not_there_is_named_with_status_1),
        cmocka_unit_test(a_models_file_is_opened_whole_or_not_at_all),
        cmocka_unit_test(gates_of_the_default_model_are_trained_and_shown),
        cmocka_unit_test(several_gates_start_as_their_mean),
        cmocka_unit_test(a_text_that_is_not_utf8_is_named),
        cmocka_unit_test(a_second_run_of_one_output_is_refused),
        cmocka_unit_test(gates_of_another_model_do_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
