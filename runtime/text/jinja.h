/* jinja.h - the Jinja that chat templates are written in.
 *
 * Renders byte for byte what Python's jinja2 renders when it is set up as
 * Hugging Face does for chat templates: a sandbox whose values cannot be
 * changed, trim_blocks, lstrip_blocks, break and continue, no autoescape, a
 * tojson that is plain json.dumps, and the functions raise_exception and
 * strftime_now. What this interpreter does not know is an error of
 * jinja_parse() that names it, so a model whose template cannot be rendered
 * right is refused when it is loaded, not in the middle of a chat.
 *
 * Origin. Every byte of the output is known to come from the template or
 * from the input, whatever filters it went through: what was computed from
 * input is input. A tokenizer that looks for special tokens only in template
 * bytes can therefore never be made to see one in what a user wrote.
 *
 * Differences from Python, all of them errors instead of other output:
 * integers are 64 bits; surrogate escapes, \N{...}, recursive loops, template
 * inheritance and includes are not there; memory, steps and output have
 * limits.
 *
 * Threads: a template does not change after jinja_parse(); any number of
 * threads may render from one at the same time. Parsing and rendering need up
 * to 256 KiB of stack, whatever the template is.
 */
#ifndef RUNTIME_TEXT_JINJA_H
#define RUNTIME_TEXT_JINJA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "base/buf.h"
#include "base/err.h"

struct jinja_template; /* opaque: fields are in jinja_ast.h */

enum {
    JINJA_SOURCE_MAX = 256 * 1024, /* bytes of a template */
    JINJA_NEST_MAX = 200, /* blocks, brackets and operators in each other */
    JINJA_CALL_MAX = 500, /* the same at run time, calls and values included */
    JINJA_STEPS_DEFAULT = 8 * 1000 * 1000,
    JINJA_OUTPUT_DEFAULT = 16 * 1024 * 1024,
    JINJA_MEMORY_DEFAULT = 128 * 1024 * 1024
};

/* A flag for cJSON.type of a string node: its text counts as template, not as
 * input. For what the caller itself vouches for: BOS and EOS, a role that was
 * checked against the list of roles. A parsed text never has it. */
enum { JINJA_TRUSTED = 1 << 16 };

/* A flag for any node: all input below it is marked in the output, wherever
 * the template puts it. For a caller that wants to find a message again. */
enum { JINJA_MARK = 1 << 17 };

struct jinja_limits { /* of one render; 0 means the default above */
    uint64_t steps;   /* nodes evaluated, and work in proportion to bytes */
    size_t output_bytes;
    size_t memory_bytes;
};

struct jinja_input {
    const cJSON *vars; /* an object: messages, tools, bos_token, ...; whole
                          numbers are integers, whatever they looked like */
    int64_t now;       /* seconds since 1970: what strftime_now() shows, in
                          the local time zone */
    struct jinja_limits limits;
};

struct jinja_segment {
    size_t offset, length; /* bytes of text; never empty */
    bool is_template;
    bool is_marked; /* input below a JINJA_MARK */
};

/* A zeroed one is valid and empty. The segments cover the text without gaps;
 * neighbours differ in is_template or in is_marked. */
struct jinja_output {
    struct buf text;
    struct jinja_segment *segments; /* owned */
    size_t n_segments;
};

/* Parses source[0..n), which must be UTF-8. On OK the caller owns *out and
 * ends it with jinja_free(). ERR_INVAL: a syntax error; ERR_UNSUPPORTED: a
 * tag, filter, test, function or method that is not known; both sentences
 * name the line. Time and memory O(n). */
MUST_CHECK enum err jinja_parse(struct jinja_template **out, const char *source,
                                size_t n, struct errmsg *m);
void jinja_free(struct jinja_template *t); /* NULL is allowed */

/* Does this word stand anywhere in the source? A caller asks so whether the
 * template knows, say, the role "developer". */
bool jinja_mentions(const struct jinja_template *t, const char *word);

/* Renders into *out, which is emptied first; on an error it is left empty.
 * ERR_INVAL: the template raised an exception (the sentence is its text), it
 * cannot digest this input, or a limit was reached. ERR_NOMEM: the host has no
 * memory. in->vars is only read. */
MUST_CHECK enum err jinja_render(struct jinja_output *out,
                                 const struct jinja_template *t,
                                 const struct jinja_input *in,
                                 struct errmsg *m);
void jinja_output_fini(struct jinja_output *out);

#endif
