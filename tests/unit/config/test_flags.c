/* Flags of a command with settings of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "config/flags.h"

struct settings {
    char *name;
    struct config_list text, word, list;
    int64_t n, time, kind, preset;
    uint64_t bytes;
    double real;
    bool on;
};

#define FIELD(f) offsetof(struct settings, f)

static const char *const kinds[] = {"red", "green", NULL};

static const struct option table[] = {
    {.name = "name",
     .type = OPT_STRING,
     .field = FIELD(name),
     .word = "X",
     .help = "A name."},
    {.name = "text",
     .type = OPT_WORDS,
     .field = FIELD(text),
     .word = "FILE...",
     .help = "Texts."},
    {.name = "number",
     .type = OPT_INT,
     .field = FIELD(n),
     .dflt = "7",
     .min = 1,
     .max = 100,
     .word = "N",
     .help = "A number."},
    {.name = "time",
     .type = OPT_TIME,
     .field = FIELD(time),
     .dflt = "3m",
     .max = 3600000,
     .word = "TIME",
     .help = "A time."},
    {.name = "kind",
     .type = OPT_CHOICE,
     .field = FIELD(kind),
     .dflt = "red",
     .choices = kinds,
     .help = "A kind."},
    {.name = "preset",
     .type = OPT_INT,
     .field = FIELD(preset),
     .max = 9,
     .word = "N",
     .shown_dflt = "something",
     .help = "Has no default here."},
    {.name = "size",
     .type = OPT_BYTES,
     .field = FIELD(bytes),
     .dflt = "1KiB",
     .max = 1 << 30,
     .word = "SIZE",
     .help = "A size."},
    {.name = "real",
     .type = OPT_REAL,
     .field = FIELD(real),
     .dflt = "0.5",
     .max = 2,
     .word = "X",
     .help = "A real number."},
    {.name = "list",
     .type = OPT_LIST,
     .field = FIELD(list),
     .dflt = "a,b",
     .word = "WORDS",
     .help = "A list."},
    {.name = "turn_on",
     .type = OPT_BOOL,
     .field = FIELD(on),
     .help = "A switch."},
};

static const struct flags flags = {.usage = "ebb try [WORD...]",
                                   .about = "Tries flags.",
                                   .option = table,
                                   .n = sizeof(table) / sizeof(table[0]),
                                   .has_words = true,
                                   .words = FIELD(word)};

#define PARSE(s, m, ...)                                                       \
    flags_parse(s, &(bool){false}, &flags,                                     \
                (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)), \
                (char *const *)(uintptr_t)(const char *[]){__VA_ARGS__}, m)

static void defaults_hold_where_nothing_is_given(void **state)
{
    (void)state;
    struct settings s = {.preset = -1};
    bool help = true;
    struct errmsg m;
    assert_int_equal(flags_parse(&s, &help, &flags, 0, NULL, &m), OK);
    assert_false(help);
    assert_null(s.name);
    assert_int_equal(s.text.n, 0);
    assert_int_equal(s.n, 7);
    assert_int_equal(s.time, 180000);
    assert_int_equal(s.kind, 0);
    assert_int_equal(s.preset, -1);
    assert_int_equal(s.bytes, 1024);
    assert_true(s.real == 0.5);
    assert_int_equal(s.list.n, 2);
    assert_string_equal(s.list.item[1], "b");
    assert_false(s.on);
    flags_fini(&s, &flags);
}

static void every_type_is_read(void **state)
{
    (void)state;
    struct settings s = {0};
    struct errmsg m;
    assert_int_equal(PARSE(&s, &m, "first", "--name", "a b", "--text", "x,y",
                           "z", "--number=9", "--time", "2s", "--kind", "green",
                           "--size", "2MiB", "--real", "1e-3", "--turn-on",
                           "second", "--text", "w", "--name=c"),
                     OK);
    assert_string_equal(s.name, "c");
    assert_int_equal(s.text.n, 3);
    assert_string_equal(s.text.item[0], "x,y"); /* no list in a list */
    assert_string_equal(s.text.item[1], "z");
    assert_string_equal(s.text.item[2], "w");
    assert_int_equal(s.word.n, 2);
    assert_string_equal(s.word.item[1], "second");
    assert_int_equal(s.n, 9);
    assert_int_equal(s.time, 2000);
    assert_int_equal(s.kind, 1);
    assert_int_equal(s.bytes, 2 << 20);
    assert_true(s.real == 1e-3);
    assert_true(s.on);
    flags_fini(&s, &flags);
    flags_fini(&s, &flags); /* leaves what may be ended again */
}

struct refused {
    const char *word, *value; /* value may be NULL */
    const char *part;         /* of the sentence */
};

static const struct refused refused[] = {
    {"--nmae", "x", "'--nmae'; the nearest known one is '--name'"},
    {"--turn_on", NULL, "nearest known one is '--turn-on'"},
    {"--number", NULL, "--number needs a value: --number N"},
    {"--number", "--name", "--number needs a value"},
    {"--number", "101", "'101' is out of range; it must be from 1 to 100"},
    {"--number", "x", "--number: 'x' is not a whole number"},
    {"--time", "3", "--time: '3' is not a time"},
    {"--kind", "gren", "the nearest known one is 'green'"},
    {"--real", "nan", "--real: 'nan' is not a number"},
    {"--real", "1x", "--real: '1x' is not a number"},
    {"--real", "2.5", "must be from 0 to 2"},
    {"--real", "-1", "must be from 0 to 2"},
    {"--number=", NULL, "--number: '' is not a whole number"},
    {"--list", "", "--list: the value is empty"},
    {"--list=", NULL, "--list: the value is empty"},
    {"--list", ",", "--list: ',' names nothing"},
    {"--list", " ", "--list: ' ' names nothing"},
    {"--list", "a,,b", "--list: 'a,,b' names nothing"},
    {"--list", "a, ", "--list: 'a, ' names nothing"},
    {"--text", "", "--text: the value is empty"},
    {"--name=", NULL, "--name: the value is empty"},
    {"", NULL, "unexpected argument ''"},
    {"-x", NULL, "unexpected argument '-x'"},
    {"--", NULL, "unexpected argument '--'"},
};

/* Given once or more, also as one word with the flag. */
static void a_list_takes_the_place_of_its_default(void **state)
{
    (void)state;
    struct settings s = {0};
    struct errmsg m;
    assert_int_equal(PARSE(&s, &m, "--list", "x", "--number", "3"), OK);
    assert_int_equal(s.list.n, 1);
    assert_string_equal(s.list.item[0], "x");
    flags_fini(&s, &flags);
    assert_int_equal(PARSE(&s, &m, "--list=x, y", "--list", "z"), OK);
    assert_int_equal(s.list.n, 3);
    assert_string_equal(s.list.item[2], "z");
    flags_fini(&s, &flags);
}

static void wrong_words_are_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        const struct refused *r = &refused[i];
        struct settings s = {0};
        struct errmsg m = {""};
        const char *argv[] = {"--name", "kept", r->word, r->value};
        bool help;
        enum err rc = flags_parse(&s, &help, &flags, r->value ? 4 : 3,
                                  (char *const *)(uintptr_t)argv, &m);
        if (rc != ERR_INVAL || strstr(m.text, r->part) == NULL)
            fail_msg("%s: %s", r->word, m.text);
        assert_null(s.name); /* nothing is left to free */
    }
}

static void words_are_refused_where_there_are_none(void **state)
{
    (void)state;
    struct flags f = flags;
    struct settings s = {0};
    struct errmsg m = {""};
    const char *argv[] = {"word"};
    bool help;
    f.has_words = false;
    assert_int_equal(
        flags_parse(&s, &help, &f, 1, (char *const *)(uintptr_t)argv, &m),
        ERR_INVAL);
    assert_non_null(strstr(m.text, "unexpected argument 'word'"));
}

static void help_names_every_flag_with_its_default(void **state)
{
    (void)state;
    struct buf b = {0};
    struct settings s = {0};
    struct errmsg m;
    bool help = false;
    const char *argv[] = {"--wrong", "--help"};
    assert_int_equal(
        flags_parse(&s, &help, &flags, 2, (char *const *)(uintptr_t)argv, &m),
        OK);
    assert_true(help);
    assert_int_equal(flags_put_help(&b, &flags), OK);
    static const char *const parts[] = {"Usage: ebb try [WORD...]",
                                        "Tries flags.",
                                        "--name X",
                                        "--text FILE...",
                                        "--kind red|green",
                                        "--turn-on",
                                        "Default: 3m.",
                                        "Default: something.",
                                        "--help"};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        assert_non_null(strstr(b.data, parts[i]));
    buf_fini(&b);
}

static void the_nearest_name_needs_the_fewest_changes(void **state)
{
    (void)state;
    static const char *const names[] = {"plain", "chat", "recall"};
    assert_string_equal(flags_nearest("paln", names, 3), "plain");
    assert_string_equal(flags_nearest("rcal", names, 3), "recall");
    assert_string_equal(flags_nearest("hat", names, 3), "chat");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_hold_where_nothing_is_given),
        cmocka_unit_test(every_type_is_read),
        cmocka_unit_test(a_list_takes_the_place_of_its_default),
        cmocka_unit_test(wrong_words_are_named),
        cmocka_unit_test(words_are_refused_where_there_are_none),
        cmocka_unit_test(help_names_every_flag_with_its_default),
        cmocka_unit_test(the_nearest_name_needs_the_fewest_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
