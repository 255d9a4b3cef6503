#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"

static char dir[] = "/tmp/ebb_file_XXXXXX";

static const char *in_dir(char path[256], const char *name)
{
    snprintf(path, 256, "%s/%s", dir, name);
    return path;
}

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(dir) == NULL;
}

static int tear_down(void **state)
{
    (void)state;
    return rmdir(dir);
}

static void what_is_written_is_read_and_mapped(void **state)
{
    (void)state;
    char path[256];
    static uint8_t data[200000];
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)(i * 31 >> 3);
    in_dir(path, "f");
    assert_int_equal(file_replace(path, data, sizeof(data), NULL), OK);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    struct file_map map;
    assert_int_equal(file_map_open(&map, path, NULL), OK);
    assert_int_equal(map.size, sizeof(data));
    assert_memory_equal(map.data, data, sizeof(data));
    struct buf b = {0};
    assert_int_equal(buf_puts(&b, "before"), OK);
    assert_int_equal(file_read_all(&b, path, sizeof(data), NULL), OK);
    assert_int_equal(b.len, 6 + sizeof(data));
    assert_memory_equal(b.data + 6, data, sizeof(data));
    /* The map still shows the old content after the name got a new one. */
    assert_int_equal(file_replace(path, "new", 3, NULL), OK);
    assert_memory_equal(map.data, data, sizeof(data));
    file_map_close(&map);
    file_map_close(&map);
    buf_clear(&b);
    assert_int_equal(file_read_all(&b, path, 3, NULL), OK);
    assert_string_equal(b.data, "new");
    buf_fini(&b);
    assert_int_equal(unlink(path), 0);
}

static void a_shared_file_has_the_mode_of_the_umask(void **state)
{
    static const mode_t masks[] = {022, 027, 077};
    char path[256], tmp[256];
    struct stat st;
    (void)state;
    in_dir(path, "f");
    in_dir(tmp, "f.tmp");
    for (int i = 0; i < 3; i++) {
        /* A crash left this one. */
        assert_int_equal(file_replace(tmp, "old", 3, NULL), OK);
        mode_t before = umask(masks[i]);
        assert_int_equal(file_replace_shared(path, "x", 1, NULL), OK);
        umask(before);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0666 & ~masks[i]);
        assert_int_equal(stat(tmp, &st), -1);
    }
    assert_int_equal(unlink(path), 0);
}

static void a_file_above_the_limit_is_refused(void **state)
{
    (void)state;
    char path[256];
    struct buf b = {0};
    struct errmsg m;
    in_dir(path, "f");
    assert_int_equal(file_replace(path, "12345", 5, NULL), OK);
    assert_int_equal(buf_puts(&b, "x"), OK);
    assert_int_equal(file_read_all(&b, path, 4, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "4 bytes"));
    assert_string_equal(b.data, "x");
    assert_int_equal(file_read_all(&b, path, 5, NULL), OK);
    assert_string_equal(b.data, "x12345");
    buf_fini(&b);
    assert_int_equal(unlink(path), 0);
}

static void what_is_no_regular_file_is_named(void **state)
{
    (void)state;
    char path[256];
    struct file_map map;
    struct buf b = {0};
    struct errmsg m;
    in_dir(path, "none");
    assert_int_equal(file_map_open(&map, path, &m), ERR_NOTFOUND);
    assert_non_null(strstr(m.text, path));
    assert_int_equal(file_read_all(&b, dir, 100, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "regular"));
    /* Nobody writes into the pipe: a blocking open would hang here. */
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(file_map_open(&map, path, &m), ERR_INVAL);
    assert_int_equal(unlink(path), 0);
    buf_fini(&b);
}

static void an_empty_file_maps_to_no_bytes(void **state)
{
    (void)state;
    char path[256];
    struct file_map map;
    in_dir(path, "empty");
    assert_int_equal(file_replace(path, "", 0, NULL), OK);
    assert_int_equal(file_map_open(&map, path, NULL), OK);
    assert_int_equal(map.size, 0);
    assert_non_null(map.data);
    file_map_close(&map);
    assert_int_equal(unlink(path), 0);
}

static void files_whose_size_is_not_stated_are_read_whole(void **state)
{
    (void)state;
    struct buf b = {0};
    assert_int_equal(file_read_all(&b, "/proc/self/status", 1 << 20, NULL), OK);
    assert_true(b.len > 100);
    assert_non_null(strstr(b.data, "Threads:"));
    buf_fini(&b);
}

static void a_failed_replacement_leaves_the_old_file_and_no_other(void **state)
{
    (void)state;
    char path[256];
    struct errmsg m;
    in_dir(path, "d");
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(file_replace(path, "x", 1, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "regular"));
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(file_replace(path, "x", 1, &m), ERR_INVAL);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    assert_int_equal(unlink(path), 0);
    in_dir(path, "no/such");
    assert_int_equal(file_replace(path, "x", 1, &m), ERR_IO);
    /* tear_down() sees that no temporary file was left. */
}

static void whether_a_file_can_be_replaced(void **state)
{
    (void)state;
    char path[256];
    struct errmsg m;
    struct buf b = {0};
    in_dir(path, "no/such");
    assert_int_equal(file_check_replace(path, &m), ERR_IO);
    in_dir(path, "f");
    assert_int_equal(file_check_replace(path, &m), OK);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_int_equal(file_replace(path, "old", 3, &m), OK);
    assert_int_equal(file_check_replace(path, &m), OK);
    assert_int_equal(file_read_all(&b, path, 10, &m), OK);
    assert_string_equal(b.data, "old");
    buf_fini(&b);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(file_check_replace(path, &m), ERR_INVAL);
    assert_int_equal(unlink(path), 0);
}

static void a_link_is_written_through(void **state)
{
    (void)state;
    char path[256], link[256], found[PATH_MAX];
    struct errmsg m;
    struct stat st;
    struct buf b = {0};
    in_dir(path, "f");
    in_dir(link, "link");
    assert_int_equal(symlink("f", link), 0);
    assert_int_equal(file_check_replace(link, &m), ERR_INVAL);
    assert_int_equal(file_replace(link, "x", 1, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, link));
    assert_int_equal(file_replace(path, "old", 3, &m), OK);
    assert_int_equal(file_check_replace(link, &m), OK);
    assert_int_equal(file_replace(link, "new", 3, &m), OK);
    assert_int_equal(lstat(link, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(file_read_all(&b, path, 10, &m), OK);
    assert_string_equal(b.data, "new");
    assert_int_equal(file_follow(found, link, &m), OK);
    assert_string_equal(found, path);
    int ends[2];
    char pipe_path[64];
    assert_int_equal(pipe(ends), 0);
    snprintf(pipe_path, sizeof(pipe_path), "/proc/self/fd/%d", ends[1]);
    assert_int_equal(file_follow(found, pipe_path, &m), OK);
    assert_string_equal(found, pipe_path);
    assert_int_equal(file_replace(pipe_path, "x", 1, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "regular"));
    close(ends[0]);
    close(ends[1]);
    assert_int_equal(file_follow(found, "no/such", &m), OK);
    assert_string_equal(found, "no/such");
    buf_fini(&b);
    assert_int_equal(unlink(link), 0);
    assert_int_equal(unlink(path), 0);
}

static void one_file_has_many_names(void **state)
{
    (void)state;
    static const char *const same[] = {"f", "./f", "sub/../f", "again/f"};
    char path[256], other[256];
    in_dir(path, "again");
    assert_int_equal(symlink(".", path), 0);
    in_dir(path, "sub");
    assert_int_equal(mkdir(path, 0700), 0);
    for (int there = 0; there < 2; there++) {
        in_dir(path, "f");
        if (there)
            assert_int_equal(file_replace(path, "x", 1, NULL), OK);
        for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++)
            assert_true(file_is_same(path, in_dir(other, same[i])));
        assert_false(file_is_same(path, in_dir(other, "g")));
        assert_false(file_is_same(path, in_dir(other, "sub/f")));
        assert_false(file_is_same(path, "/f"));
    }
    assert_int_equal(symlink("f", in_dir(other, "link")), 0);
    assert_true(file_is_same(path, other));
    assert_int_equal(unlink(other), 0);
    assert_int_equal(link(path, other), 0);
    assert_true(file_is_same(path, other));
    assert_int_equal(unlink(other), 0);
    assert_int_equal(unlink(path), 0);
    /* Without a folder in the name, and in one that is not there. */
    assert_true(file_is_same("no such file", "./no such file"));
    assert_false(file_is_same("no such file", "no such file either"));
    assert_false(file_is_same("/no/f", "/nor/f"));
    assert_int_equal(rmdir(in_dir(path, "sub")), 0);
    assert_int_equal(unlink(in_dir(path, "again")), 0);
}

static void a_lock_is_for_one_and_leaves_no_file(void **state)
{
    (void)state;
    char path[256];
    int one = -1, two = -1;
    struct errmsg m;
    in_dir(path, "lock");
    assert_int_equal(file_lock(&one, path, NULL), OK);
    assert_int_equal(file_lock(&two, path, &m), ERR_BUSY);
    assert_non_null(strstr(m.text, path));
    file_unlock(one, path);
    assert_int_not_equal(access(path, F_OK), 0);
    /* What was left behind locks nothing. */
    assert_int_equal(file_replace(path, "", 0, NULL), OK);
    assert_int_equal(file_lock(&two, path, NULL), OK);
    file_unlock(two, path);
    file_unlock(-1, path);
    assert_int_equal(file_replace(path, "x", 1, NULL), OK);
    assert_int_equal(file_lock(&one, path, &m), ERR_INVAL);
    assert_int_equal(unlink(path), 0); /* it is still there */
    in_dir(path, "no/such");
    assert_int_equal(file_lock(&one, path, &m), ERR_IO);
}

/* A lock on a file that its last owner has removed meanwhile is worth nothing:
 * of four processes that take it and give it back never two may be inside.
 * Whoever is makes a folder, which fails if it is there. */
static void a_lock_of_a_removed_file_is_none(void **state)
{
    (void)state;
    enum { PROCESSES = 4, ROUNDS = 300 };
    char path[256], inside[256];
    in_dir(path, "lock");
    in_dir(inside, "inside");
    for (int i = 0; i < PROCESSES; i++) {
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid != 0)
            continue;
        for (int k = 0; k < ROUNDS;) {
            int fd = -1;
            enum err rc = file_lock(&fd, path, NULL);
            if (rc != OK && rc != ERR_BUSY)
                _exit(2);
            if (rc != OK) {
                usleep(50);
                continue;
            }
            if (mkdir(inside, 0700) != 0 || rmdir(inside) != 0)
                _exit(1);
            file_unlock(fd, path);
            k++;
        }
        _exit(0);
    }
    int bad = 0, status = 0;
    for (int i = 0; i < PROCESSES; i++) {
        assert_true(wait(&status) > 0);
        bad += status != 0;
    }
    assert_int_equal(bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read_and_mapped),
        cmocka_unit_test(a_shared_file_has_the_mode_of_the_umask),
        cmocka_unit_test(a_file_above_the_limit_is_refused),
        cmocka_unit_test(what_is_no_regular_file_is_named),
        cmocka_unit_test(an_empty_file_maps_to_no_bytes),
        cmocka_unit_test(files_whose_size_is_not_stated_are_read_whole),
        cmocka_unit_test(a_failed_replacement_leaves_the_old_file_and_no_other),
        cmocka_unit_test(whether_a_file_can_be_replaced),
        cmocka_unit_test(a_link_is_written_through),
        cmocka_unit_test(one_file_has_many_names),
        cmocka_unit_test(a_lock_is_for_one_and_leaves_no_file),
        cmocka_unit_test(a_lock_of_a_removed_file_is_none),
    };
    return cmocka_run_group_tests_name("base/file", tests, set_up, tear_down);
}
