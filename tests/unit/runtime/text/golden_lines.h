/* golden_lines.h - the test lines of test_tokenizer_golden.c.
 *
 * A seeded generator over tests/golden/tokenizer/fragments.txt, the same as in
 * tests/tools/make_tokenizer_golden.py: change both together.
 */
#ifndef TESTS_GOLDEN_LINES_H
#define TESTS_GOLDEN_LINES_H

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/utf8.h"

#define GOLDEN_DIR "tests/golden/tokenizer/"

enum { GOLDEN_LINES = 20480, GOLDEN_PART_MAX = 256 };

struct golden_section {
    struct buf item[GOLDEN_PART_MAX];
    size_t n;
};

struct golden_parts {
    struct golden_section whole, special, space;
    uint32_t lo[GOLDEN_PART_MAX], hi[GOLDEN_PART_MAX];
    size_t n_ranges;
};

#define MUST(call) assert((call) == OK)

static uint64_t golden_next(uint64_t *s)
{
    uint64_t z = *s += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static size_t golden_below(uint64_t *s, size_t n)
{
    return (size_t)(golden_next(s) % n);
}

static void golden_put_char(struct buf *out, uint32_t c)
{
    char b[UTF8_MAX_BYTES];
    if (c < 0xD800 || c > 0xDFFF)
        MUST(buf_append(out, b, (size_t)utf8_encode(c, b)));
}

static void golden_unescape(struct buf *out, const char *s)
{
    static const char from[] = "nrt\\", to[] = "\n\r\t\\";
    while (*s != '\0') {
        char *end = NULL;
        const char *simple = s[1] != '\0' ? strchr(from, s[1]) : NULL;
        if (s[0] != '\\') {
            MUST(buf_putc(out, *s++));
        } else if (simple != NULL) {
            MUST(buf_putc(out, to[simple - from]));
            s += 2;
        } else if (s[1] == 'x') {
            char hex[3] = {s[2], s[3], '\0'};
            MUST(buf_putc(out, (char)strtoul(hex, NULL, 16)));
            s += 4;
        } else {
            assert(s[1] == 'u' && s[2] == '{');
            golden_put_char(out, (uint32_t)strtoul(s + 3, &end, 16));
            s = end + 1;
        }
    }
}

static void golden_load_line(struct golden_parts *p, char section, char *line)
{
    if (section == 'r') {
        char *end = NULL;
        assert(p->n_ranges < GOLDEN_PART_MAX);
        p->lo[p->n_ranges] = (uint32_t)strtoul(line, &end, 16);
        p->hi[p->n_ranges++] = (uint32_t)strtoul(end, NULL, 16);
        return;
    }
    struct golden_section *to = section == '!'   ? &p->special
                                : section == ' ' ? &p->space
                                                 : &p->whole;
    assert(to->n < GOLDEN_PART_MAX);
    golden_unescape(&to->item[to->n++], line);
}

static void golden_load(struct golden_parts *p)
{
    char line[4096];
    char section = 0;
    FILE *f = fopen(GOLDEN_DIR "fragments.txt", "rb");
    memset(p, 0, sizeof(*p));
    assert(f != NULL);
    while (fgets(line, sizeof(line), f) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (line[0] == '\0' || strncmp(line, "# ", 2) == 0)
            continue;
        if (strcmp(line, "[text]") == 0 || strcmp(line, "[code]") == 0)
            section = 'w';
        else if (strcmp(line, "[special]") == 0)
            section = '!';
        else if (strcmp(line, "[space]") == 0)
            section = ' ';
        else if (strcmp(line, "[range]") == 0)
            section = 'r';
        else
            golden_load_line(p, section, line);
    }
    fclose(f);
}

static void golden_free(struct golden_parts *p)
{
    for (size_t i = 0; i < GOLDEN_PART_MAX; i++) {
        buf_fini(&p->whole.item[i]);
        buf_fini(&p->special.item[i]);
        buf_fini(&p->space.item[i]);
    }
}

static void golden_put_whole(struct buf *out, uint64_t *rng,
                             const struct golden_section *from)
{
    const struct buf *b = &from->item[golden_below(rng, from->n)];
    MUST(buf_append(out, b->data, b->len));
}

static void golden_put_slice(struct buf *out, uint64_t *rng,
                             const struct golden_section *from)
{
    const struct buf *b = &from->item[golden_below(rng, from->n)];
    size_t begin = golden_below(rng, b->len);
    size_t n = golden_below(rng, b->len - begin + 1);
    MUST(buf_append(out, b->data + begin, n));
}

static void golden_put_range(struct buf *out, uint64_t *rng,
                             const struct golden_parts *p, bool repeat)
{
    size_t r = golden_below(rng, p->n_ranges);
    size_t width = p->hi[r] - p->lo[r] + 1;
    if (repeat) {
        uint32_t c = p->lo[r] + (uint32_t)golden_below(rng, width);
        for (size_t n = 1 + golden_below(rng, 20); n > 0; n--)
            golden_put_char(out, c);
        return;
    }
    for (size_t n = 1 + golden_below(rng, 6); n > 0; n--)
        golden_put_char(out, p->lo[r] + (uint32_t)golden_below(rng, width));
}

/* n bytes, each from..from + width - 1. */
static void golden_put_bytes(struct buf *out, uint64_t *rng, size_t n,
                             size_t from, size_t width)
{
    for (; n > 0; n--)
        MUST(buf_putc(out, (char)(from + golden_below(rng, width))));
}

static void golden_put_part(struct buf *out, uint64_t *rng,
                            const struct golden_parts *p)
{
    size_t kind = golden_below(rng, 16);
    if (kind <= 3) {
        golden_put_whole(out, rng, &p->whole);
    } else if (kind <= 6) {
        golden_put_slice(out, rng, &p->whole);
    } else if (kind == 7) {
        golden_put_whole(out, rng, &p->special);
    } else if (kind == 8) {
        golden_put_slice(out, rng, &p->special);
    } else if (kind <= 10) {
        golden_put_range(out, rng, p, false);
    } else if (kind == 11) {
        golden_put_bytes(out, rng, 1 + golden_below(rng, 7), '0', 10);
    } else if (kind == 12) {
        for (size_t n = 1 + golden_below(rng, 6); n > 0; n--)
            golden_put_whole(out, rng, &p->space);
    } else if (kind == 13) {
        golden_put_bytes(out, rng, 1 + golden_below(rng, 3), 0, 256);
    } else if (kind == 14) {
        golden_put_bytes(out, rng, 1 + golden_below(rng, 8), 32, 95);
    } else {
        golden_put_range(out, rng, p, true);
    }
}

/* Line i into *out: first every fragment as it is, then mixtures. */
static void golden_line(struct buf *out, const struct golden_parts *p, size_t i)
{
    buf_clear(out);
    if (i < p->whole.n) {
        MUST(buf_append(out, p->whole.item[i].data, p->whole.item[i].len));
        return;
    }
    uint64_t rng = (uint64_t)i * 1000003u;
    for (size_t n = 1 + golden_below(&rng, 6); n > 0; n--)
        golden_put_part(out, &rng, p);
}

#endif
