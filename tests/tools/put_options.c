/* Prints what the option table generates: `put_options page|example|help`. */
#include <stdio.h>
#include <string.h>

#include "config/config.h"

int main(int argc, char **argv)
{
    struct buf out = {0};
    enum err rc = ERR_INVAL;
    const char *what = argc == 2 ? argv[1] : "";
    if (strcmp(what, "page") == 0)
        rc = config_put_page(&out);
    else if (strcmp(what, "example") == 0)
        rc = config_put_example(&out);
    else if (strcmp(what, "help") == 0)
        rc = config_put_help(&out);
    if (rc == OK)
        fwrite(out.data, 1, out.len, stdout);
    else
        fprintf(stderr, "put_options page|example|help\n");
    buf_fini(&out);
    return rc == OK ? 0 : 2;
}
