#include <stdio.h>
#include <string.h>

#include "config/config.h"
#include "config/option.h"

enum { HELP_WIDTH = 78 };

enum err option_put_wrapped(struct buf *out, const char *lead, const char *text)
{
    size_t column = 0;
    enum err rc = OK;
    while (*text != '\0' && rc == OK) {
        size_t n = strcspn(text, " ");
        if (column > 0 && column + 1 + n > HELP_WIDTH) {
            rc = buf_putc(out, '\n');
            column = 0;
        }
        if (rc == OK)
            rc = buf_puts(out, column == 0 ? lead : " ");
        if (rc == OK)
            rc = buf_append(out, text, n);
        column += n + (column == 0 ? strlen(lead) : 1);
        text += n;
        text += strspn(text, " ");
    }
    return rc == OK ? buf_putc(out, '\n') : rc;
}

const char *option_default(const struct option *o)
{
    if (o->shown_dflt != NULL)
        return o->shown_dflt;
    return o->type == OPT_BOOL ? "off" : o->dflt;
}

void option_usage(char *out, size_t size, const struct option *o)
{
    char flag[OPTION_NAME_MAX + 8];
    option_flag(flag, o);
    snprintf(out, size, "%s", flag);
    for (int i = 0; o->choices != NULL && o->choices[i] != NULL; i++) {
        size_t n = strlen(out);
        snprintf(out + n, size - n, "%c%s", i == 0 ? ' ' : '|', o->choices[i]);
    }
    size_t n = strlen(out);
    if (o->word != NULL)
        snprintf(out + n, size - n, " %s", o->word);
}

enum err config_put_help(struct buf *out)
{
    size_t n;
    const struct option *o = option_table(&n);
    enum err rc = buf_puts(
        out, "Usage: ebb serve [options]\n\n"
             "Serves one model over the OpenAI-compatible HTTP interface.\n\n"
             "Each option is also a variable (EBB_KV_MEMORY) and a key of the\n"
             "config file (\"kv_memory\"); a flag beats a variable, a "
             "variable\n"
             "beats the file. Sizes: 64MiB, 2GiB, bytes, or 40% of the "
             "memory\n"
             "available at the start. Times: 500ms, 30s, 5m.\n\n");
    for (size_t i = 0; i < n && rc == OK; i++) {
        char text[160];
        option_usage(text, sizeof(text), &o[i]);
        rc = buf_printf(out, "  %s%s\n", text,
                        o[i].type == OPT_LIST ? "   (may repeat)" : "");
        if (rc == OK)
            rc = option_put_wrapped(out, "      ", o[i].help);
        if (rc == OK)
            rc = buf_printf(out, "      Default: %s.\n", option_default(&o[i]));
    }
    if (rc == OK)
        rc = buf_puts(out, "  --help\n      This text.\n");
    return rc;
}

/* A bar would end the cell. */
static enum err put_cell(struct buf *out, const char *text)
{
    enum err rc = OK;
    for (; *text != '\0' && rc == OK; text++) {
        if (*text == '|')
            rc = buf_putc(out, '\\');
        if (rc == OK)
            rc = buf_putc(out, *text);
    }
    return rc;
}

static enum err put_row(struct buf *out, const struct option *o)
{
    char text[160];
    option_usage(text, sizeof(text), o);
    enum err rc = buf_puts(out, "| `");
    if (rc == OK)
        rc = put_cell(out, text);
    if (rc == OK)
        rc = buf_printf(out, "`%s | ",
                        o->type == OPT_LIST ? " (may repeat)" : "");
    if (rc == OK)
        rc = put_cell(out, option_default(o));
    if (rc == OK)
        rc = buf_puts(out, " | ");
    if (rc == OK)
        rc = put_cell(out, o->help);
    return rc == OK ? buf_puts(out, " |\n") : rc;
}

enum err config_put_page(struct buf *out)
{
    size_t n;
    const struct option *o = option_table(&n);
    enum err rc = buf_puts(
        out,
        "# Options of `ebb serve`\n\n"
        "Generated from the option table (`make docs`); do not edit.\n\n"
        "Every option exists as a flag (`--kv-memory 2GiB` or "
        "`--kv-memory=2GiB`), as a variable\n(`EBB_KV_MEMORY`) and as a key "
        "of the config file (`\"kv_memory\"`). A flag beats a variable, a\n"
        "variable beats the file. Sizes: `64MiB`, `2GiB`, plain bytes, or "
        "`40%` of the memory that is\navailable at the start. Times: "
        "`500ms`, `30s`, `5m`.\n\n"
        "| option | default | meaning |\n|---|---|---|\n");
    for (size_t i = 0; i < n && rc == OK; i++)
        rc = put_row(out, &o[i]);
    return rc;
}

/* The default as JSON. What says "as the machine allows" is shown as its
 * number. */
static enum err put_default(struct buf *out, const struct option *o)
{
    if (o->type == OPT_BOOL || o->type == OPT_INT || o->type == OPT_REAL)
        return buf_puts(out, o->dflt);
    if (o->type != OPT_LIST)
        return buf_printf(out, "\"%s\"", o->dflt);
    return o->dflt[0] == '\0' ? buf_puts(out, "[]")
                              : buf_printf(out, "[\"%s\"]", o->dflt);
}

enum err config_put_example(struct buf *out)
{
    size_t n;
    const struct option *o = option_table(&n);
    enum err rc = buf_puts(
        out, "// Settings of `ebb serve --config FILE`: all options with "
             "their defaults.\n"
             "// Generated from the option table (make docs). Copy what you "
             "change; the\n"
             "// keys are those of docs/options.md.\n{\n");
    bool first = true;
    for (size_t i = 0; i < n && rc == OK; i++) {
        if (o[i].is_flag_only)
            continue;
        rc = buf_puts(out, first ? "" : ",\n\n");
        first = false;
        if (rc == OK)
            rc = option_put_wrapped(out, "    // ", o[i].help);
        if (rc == OK)
            rc = buf_printf(out, "    \"%s\": ", o[i].name);
        if (rc == OK)
            rc = put_default(out, &o[i]);
    }
    return rc == OK ? buf_puts(out, "\n}\n") : rc;
}
