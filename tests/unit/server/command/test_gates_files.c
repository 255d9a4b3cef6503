/* The files of `ebb gates train`: what it writes is not what it reads, and can
 * be written. */
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

#include "base/file.h"
#include "server/command/gates_internal.h"

enum { NAMES = 8, PATH = 64 };

/* A run in a folder of its own, in which all names are. */
struct setup {
    char dir[32], first[PATH];
    char (*name)[PATH]; /* of in_dir() */
    int n;
    char *text[2], *init[1];
    struct config_list texts, inits;
    struct gates_inputs in;
    struct gates_files f;
    const char *checkpoint;
    struct errmsg m;
};

static char *in_dir(struct setup *s, const char *name)
{
    assert_true(s->n < NAMES);
    char *to = s->name[s->n++];
    snprintf(to, PATH, "%s/%s", s->dir, name);
    return to;
}

static void setup_init(struct setup *s)
{
    memset(s, 0, sizeof(*s));
    snprintf(s->dir, sizeof(s->dir), "/tmp/ebb-files-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    snprintf(s->first, PATH, "%s/text", s->dir);
    assert_int_equal(file_replace(s->first, "words", 5, NULL), OK);
    s->name = calloc(NAMES, sizeof(*s->name));
    assert_non_null(s->name);
    s->text[0] = s->text[1] = s->first;
    s->texts = (struct config_list){s->text, 2};
    s->inits = (struct config_list){s->init, 0};
    s->in = (struct gates_inputs){"/models/m", &s->texts, &s->inits};
    s->f.out = "out";
    s->f.learns = true;
    s->f.held_out.fd = s->f.held_checkpoint.fd = -1;
}

/* Nothing but the text is there. */
static void setup_fini(struct setup *s)
{
    assert_int_equal(unlink(s->first), 0);
    assert_int_equal(rmdir(s->dir), 0);
    free(s->name);
}

static void check(struct setup *s, enum err want, const char *a, const char *b)
{
    memset(&s->m, 0, sizeof(s->m));
    enum err rc = gates_files_check(&s->f, s->checkpoint, &s->in, &s->m);
    if (rc != want || strstr(s->m.text, a) == NULL ||
        strstr(s->m.text, b) == NULL)
        fail_msg("%d: '%s', not '%s' and '%s'", (int)rc, s->m.text, a, b);
}

static void what_is_read_is_not_written(void **state)
{
    (void)state;
    static const char *const beside[] = {"",
                                         ".tmp",
                                         ".lock",
                                         ".checkpoint",
                                         ".checkpoint.tmp",
                                         ".checkpoint.lock"};
    struct setup s;
    setup_init(&s);
    s.f.out = in_dir(&s, "g");
    s.text[0] = in_dir(&s, "other");
    check(&s, OK, "", "");
    for (size_t i = 0; i < sizeof(beside) / sizeof(beside[0]); i++) {
        char path[PATH], text[PATH + 8], model[PATH + 8];
        snprintf(path, sizeof(path), "%s/./g%s", s.dir, beside[i]);
        snprintf(text, sizeof(text), "--text %s", path);
        snprintf(model, sizeof(model), "--model %s", path);
        const char *written = i < 3 ? "--out /tmp/" : "--checkpoint /tmp/";
        s.text[1] = path;
        check(&s, ERR_INVAL, text, written);
        s.text[1] = s.first;
        s.in.model = path;
        check(&s, ERR_INVAL, model, written);
        s.in.model = "/models/m";
        check(&s, OK, "", "");
    }
    s.f.log = s.first;
    check(&s, ERR_INVAL, "--log /tmp/", "--text /tmp/");
    s.checkpoint = s.first;
    s.f.log = NULL;
    check(&s, ERR_INVAL, "--checkpoint /tmp/", "--text /tmp/");
    setup_fini(&s);
}

static void no_two_of_those_written_are_one(void **state)
{
    (void)state;
    struct setup s;
    setup_init(&s);
    s.f.out = in_dir(&s, "g");
    s.checkpoint = in_dir(&s, "./g");
    check(&s, ERR_INVAL, "--checkpoint /tmp/", "--out /tmp/");
    s.checkpoint = in_dir(&s, "g.tmp");
    check(&s, ERR_INVAL, "--checkpoint /tmp/", "--out /tmp/");
    s.checkpoint = NULL;
    s.f.log = in_dir(&s, "g");
    check(&s, ERR_INVAL, "--log /tmp/", "--out /tmp/");
    s.f.log = in_dir(&s, "g.lock");
    check(&s, ERR_INVAL, "--log /tmp/", "--out /tmp/");
    s.f.log = in_dir(&s, "g.checkpoint");
    check(&s, ERR_INVAL, "--log /tmp/", "--checkpoint /tmp/");
    s.f.log = in_dir(&s, "g.log");
    check(&s, OK, "", "");
    setup_fini(&s);
}

static void links_hide_nothing(void **state)
{
    (void)state;
    struct setup s;
    setup_init(&s);
    const char *soft = in_dir(&s, "soft"), *hard = in_dir(&s, "hard");
    assert_int_equal(symlink("text", soft), 0);
    assert_int_equal(link(s.first, hard), 0);
    for (int i = 0; i < 2; i++) {
        s.f.out = i == 0 ? soft : hard;
        check(&s, ERR_INVAL, s.f.out, s.first);
        s.f.log = s.f.out;
        s.f.out = in_dir(&s, "g");
        check(&s, ERR_INVAL, s.f.log, s.first);
        s.checkpoint = s.f.log;
        s.f.log = NULL;
        check(&s, ERR_INVAL, s.checkpoint, s.first);
        s.checkpoint = NULL;
    }
    unlink(soft);
    unlink(hard);
    setup_fini(&s);
}

/* Only by the result: what is written on the way would be gone for a run that
 * goes on. */
static void gates_may_be_replaced_by_what_they_became(void **state)
{
    (void)state;
    struct setup s;
    setup_init(&s);
    s.f.out = in_dir(&s, "g");
    s.inits.n = 1;
    s.init[0] = in_dir(&s, "g");
    check(&s, OK, "", "");
    s.f.log = s.init[0] = in_dir(&s, "log");
    check(&s, ERR_INVAL, "--log /tmp/", "--init /tmp/");
    s.f.log = NULL;
    s.init[0] = in_dir(&s, "g.tmp");
    check(&s, ERR_INVAL, "--out /tmp/", "--init /tmp/");
    s.init[0] = in_dir(&s, "g.checkpoint");
    check(&s, ERR_INVAL, "--checkpoint /tmp/", "--init /tmp/");
    /* Without a step no checkpoint is written, nor a log. */
    s.f.learns = false;
    s.f.log = s.init[0];
    check(&s, OK, "", "");
    setup_fini(&s);
}

static void check_no_file(struct setup *s, const char *sentence)
{
    check(s, OK, "", "");
    assert_int_equal(gates_files_hold(&s->f, &s->m), ERR_INVAL);
    if (strstr(s->m.text, sentence) == NULL)
        fail_msg("%s", s->m.text);
    gates_files_release(&s->f);
}

static void what_cannot_be_replaced_is_told_at_once(void **state)
{
    (void)state;
    struct setup s;
    setup_init(&s);
    const char *folder = in_dir(&s, "folder"), *out = in_dir(&s, "g");
    assert_int_equal(mkdir(folder, 0700), 0);
    s.f.out = folder;
    check_no_file(&s, "--out: /tmp/");
    s.f.out = out;
    s.checkpoint = folder;
    check_no_file(&s, "--checkpoint: /tmp/");
    s.checkpoint = NULL;
    s.f.log = folder;
    check(&s, ERR_INVAL, "--log: /tmp/", "is a folder");
    s.f.log = in_dir(&s, "none/log");
    check(&s, ERR_INVAL, "--log: the folder of /tmp/", "cannot be written");
    s.f.log = NULL;
    s.checkpoint = in_dir(&s, "none/checkpoint");
    check(&s, ERR_INVAL, "--checkpoint: the folder of /tmp/", "be written");
    s.checkpoint = NULL;
    s.f.log = "/dev/null"; /* a device takes lines */
    check(&s, OK, "", "");
    assert_int_equal(gates_files_hold(&s.f, &s.m), OK);
    gates_files_release(&s.f);
    rmdir(folder);
    setup_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_read_is_not_written),
        cmocka_unit_test(no_two_of_those_written_are_one),
        cmocka_unit_test(links_hide_nothing),
        cmocka_unit_test(gates_may_be_replaced_by_what_they_became),
        cmocka_unit_test(what_cannot_be_replaced_is_told_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
