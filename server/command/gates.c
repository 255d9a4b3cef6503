#include "server/command/gates.h"

#include <stdio.h>
#include <string.h>

#include "server/command/gates_internal.h"

static const struct {
    const char *name;
    const struct flags *flags;
} commands[] = {{"train", &gates_train_flags}, {"show", &gates_show_flags}};

int gates_fail(int status, const struct errmsg *m)
{
    fprintf(stderr, "ebb gates: %s\n", m->text);
    return status;
}

static void print_usage(FILE *to)
{
    fputs("Retention gates say which cached keys and values a model can "
          "forget.\n\n"
          "  ebb gates train   trains them for a model\n"
          "  ebb gates show    says what a file of them holds\n\n"
          "`ebb gates train --help` and `ebb gates show --help` have the "
          "options.\n",
          to);
}

static int print_help(const struct flags *f)
{
    struct buf text = {0};
    int status = GATES_FAILED;
    if (flags_put_help(&text, f) == OK) {
        fputs(text.data, stdout);
        status = GATES_DONE;
    }
    buf_fini(&text);
    return status;
}

int gates_help(const char *name)
{
    if (name == NULL) {
        print_usage(stdout);
        return GATES_DONE;
    }
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        if (strcmp(name, commands[i].name) == 0)
            return print_help(commands[i].flags);
    fprintf(stderr, "ebb gates: there is no command \"%s\"\n", name);
    print_usage(stderr);
    return GATES_USAGE;
}

static bool wants_help(int argc, char *const *argv)
{
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

int gates_command(int argc, char *const *argv, const atomic_bool *stop)
{
    if (argc == 0) {
        print_usage(stderr);
        return GATES_USAGE;
    }
    if (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0)
        return gates_help(NULL);
    if (wants_help(argc - 1, argv + 1))
        return gates_help(argv[0]);
    if (strcmp(argv[0], "train") == 0)
        return gates_train(argc - 1, argv + 1, stop);
    if (strcmp(argv[0], "show") == 0)
        return gates_show(argc - 1, argv + 1);
    return gates_help(argv[0]);
}
