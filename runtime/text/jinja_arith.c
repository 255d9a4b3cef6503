#include <math.h>
#include <string.h>

#include "runtime/text/jinja_eval.h"

static const char *const symbols[] = {
    [JINJA_OP_ADD] = "+",        [JINJA_OP_SUB] = "-",
    [JINJA_OP_MUL] = "*",        [JINJA_OP_DIV] = "/",
    [JINJA_OP_FLOORDIV] = "//",  [JINJA_OP_MOD] = "%",
    [JINJA_OP_POW] = "**",       [JINJA_OP_EQ] = "==",
    [JINJA_OP_NE] = "!=",        [JINJA_OP_LT] = "<",
    [JINJA_OP_LE] = "<=",        [JINJA_OP_GT] = ">",
    [JINJA_OP_GE] = ">=",        [JINJA_OP_IN] = "in",
    [JINJA_OP_NOT_IN] = "not in"};

static enum err wrong_types(struct jinja_run *r, enum jinja_op op,
                            const struct jval *a, const struct jval *b)
{
    if (op == JINJA_OP_ADD && a->type == JINJA_STR)
        return jinja_fail(r, "can only concatenate str (not \"%s\") to str",
                          jinja_type_name(b));
    return jinja_fail(r, "unsupported operand types for %s: '%s' and '%s'",
                      symbols[op], jinja_type_name(a), jinja_type_name(b));
}

/* --- Numbers --- */

static enum err int_power(struct jinja_run *r, int64_t base, int64_t exp,
                          jinja_origin origin, struct jval *out)
{
    int64_t result = 1;
    if (exp < 0) {
        if (base == 0)
            return jinja_fail(r, "0 cannot be raised to a negative power");
        *out = jinja_float(pow((double)base, (double)exp), origin);
        return OK;
    }
    while (exp > 0) {
        if ((exp & 1) != 0 && __builtin_mul_overflow(result, base, &result))
            return jinja_fail(r, "an integer does not fit into 64 bits");
        exp >>= 1;
        if (exp > 0 && __builtin_mul_overflow(base, base, &base))
            return jinja_fail(r, "an integer does not fit into 64 bits");
    }
    *out = jinja_int(result, origin);
    return OK;
}

/* The quotient rounded down and its remainder, which has the sign of b. */
static enum err int_divide(struct jinja_run *r, int64_t a, int64_t b,
                           int64_t *quotient, int64_t *rest)
{
    if (b == 0)
        return jinja_fail(r, "division by zero");
    if (a == INT64_MIN && b == -1)
        return jinja_fail(r, "an integer does not fit into 64 bits");
    *quotient = a / b;
    *rest = a % b;
    if (*rest != 0 && (*rest < 0) != (b < 0)) {
        *quotient -= 1;
        *rest += b;
    }
    return OK;
}

static enum err int_op(struct jinja_run *r, enum jinja_op op, int64_t a,
                       int64_t b, jinja_origin origin, struct jval *out)
{
    int64_t result = 0, other;
    bool too_large = false;
    switch (op) {
    case JINJA_OP_ADD:
        too_large = __builtin_add_overflow(a, b, &result);
        break;
    case JINJA_OP_SUB:
        too_large = __builtin_sub_overflow(a, b, &result);
        break;
    case JINJA_OP_MUL:
        too_large = __builtin_mul_overflow(a, b, &result);
        break;
    case JINJA_OP_FLOORDIV:
        TRY(int_divide(r, a, b, &result, &other));
        break;
    case JINJA_OP_MOD:
        TRY(int_divide(r, a, b, &other, &result));
        break;
    case JINJA_OP_POW:
        return int_power(r, a, b, origin, out);
    default:
        if (b == 0)
            return jinja_fail(r, "division by zero");
        *out = jinja_float((double)a / (double)b, origin);
        return OK;
    }
    if (too_large)
        return jinja_fail(r, "an integer does not fit into 64 bits");
    *out = jinja_int(result, origin);
    return OK;
}

static enum err float_op(struct jinja_run *r, enum jinja_op op, double a,
                         double b, jinja_origin origin, struct jval *out)
{
    double result = 0, rest;
    if (b == 0 && op >= JINJA_OP_DIV && op <= JINJA_OP_MOD)
        return jinja_fail(r, "division by zero");
    switch (op) {
    case JINJA_OP_ADD:
        result = a + b;
        break;
    case JINJA_OP_SUB:
        result = a - b;
        break;
    case JINJA_OP_MUL:
        result = a * b;
        break;
    case JINJA_OP_DIV:
        result = a / b;
        break;
    case JINJA_OP_POW:
        result = pow(a, b);
        if (isnan(result) || isinf(result))
            return jinja_fail(r, "the result of ** is not a finite number");
        break;
    default: /* // and %, as float_divmod of CPython computes them */
        rest = fmod(a, b);
        result = (a - rest) / b;
        if (rest != 0 && (rest < 0) != (b < 0)) {
            rest += b;
            result -= 1;
        } else if (rest == 0) {
            rest = copysign(0.0, b);
        }
        result = result != 0 ? floor(result) + (result - floor(result) > 0.5)
                             : copysign(0.0, a / b);
        if (op == JINJA_OP_MOD)
            result = rest;
        break;
    }
    *out = jinja_float(result, origin);
    return OK;
}

/* --- Strings and lists --- */

static enum err add_text(struct jinja_run *r, const struct jval *a,
                         const struct jval *b, struct jval *out)
{
    struct jval left = *a, right = *b;
    bool is_markup = a->is_markup || b->is_markup;
    if (is_markup) { /* markupsafe escapes the side that is not marked */
        TRY(jinja_escape(r, a, &left));
        TRY(jinja_escape(r, b, &right));
    }
    TRY(jinja_str_concat(r, &left, &right, out));
    out->is_markup = is_markup;
    return OK;
}

static enum err add_lists(struct jinja_run *r, const struct jval *a,
                          const struct jval *b, struct jval *out)
{
    struct jinja_seq *s;
    size_t n = a->seq->n, m = b->seq->n;
    TRY(jinja_seq_new(r, n + m, a->seq->kind, &s));
    if (n > 0)
        memcpy(s->items, a->seq->items, n * sizeof(*s->items));
    if (m > 0)
        memcpy(s->items + n, b->seq->items, m * sizeof(*s->items));
    *out = jinja_of_seq(s, a->origin | b->origin);
    return OK;
}

static enum err repeat(struct jinja_run *r, const struct jval *what,
                       int64_t times, struct jval *out)
{
    if (times < 0)
        times = 0;
    if (what->type == JINJA_STR) {
        struct jinja_sb b = {.r = r};
        for (int64_t i = 0; i < times; i++) {
            TRY(jinja_step(r, 1));
            TRY(jinja_sb_put_part(&b, what, 0, what->s.n));
        }
        TRY(jinja_sb_done(&b, out));
        out->is_markup = what->is_markup;
        return OK;
    }
    struct jinja_list l = {0};
    for (int64_t i = 0; i < times; i++) {
        TRY(jinja_step(r, 1));
        for (size_t k = 0; k < what->seq->n; k++)
            TRY(jinja_list_add(r, &l, what->seq->items[k]));
    }
    return jinja_list_done(r, &l, what->seq->kind, what->origin, out);
}

static bool is_plain_seq(const struct jval *v)
{
    return v->type == JINJA_SEQ && v->seq->kind <= JINJA_TUPLE;
}

static bool is_repeatable(const struct jval *v)
{
    return v->type == JINJA_STR || is_plain_seq(v);
}

enum err jinja_binary(struct jinja_run *r, enum jinja_op op,
                      const struct jval *a, const struct jval *b,
                      struct jval *out)
{
    jinja_origin origin = a->origin | b->origin;
    if (jinja_is_undefined(a))
        return jinja_use_undefined(r, a);
    if (op == JINJA_OP_MOD && a->type == JINJA_STR)
        return jinja_percent(r, a, b, out);
    if (jinja_is_undefined(b))
        return jinja_use_undefined(r, b);
    if (jinja_is_int(a) && jinja_is_int(b))
        return int_op(r, op, jinja_integer(a), jinja_integer(b), origin, out);
    if (jinja_is_number(a) && jinja_is_number(b))
        return float_op(r, op, jinja_number(a), jinja_number(b), origin, out);
    if (op == JINJA_OP_ADD) {
        if (a->type == JINJA_STR && b->type == JINJA_STR)
            return add_text(r, a, b, out);
        if (is_plain_seq(a) && is_plain_seq(b) && a->seq->kind == b->seq->kind)
            return add_lists(r, a, b, out);
    }
    if (op == JINJA_OP_MUL) {
        if (is_repeatable(a) && jinja_is_int(b))
            return repeat(r, a, jinja_integer(b), out);
        if (jinja_is_int(a) && is_repeatable(b))
            return repeat(r, b, jinja_integer(a), out);
    }
    return wrong_types(r, op, a, b);
}

enum err jinja_compare(struct jinja_run *r, enum jinja_op op,
                       const struct jval *a, const struct jval *b, bool *out)
{
    int order;
    switch (op) {
    case JINJA_OP_EQ:
        return jinja_equal(r, a, b, out);
    case JINJA_OP_NE:
        TRY(jinja_equal(r, a, b, out));
        *out = !*out;
        return OK;
    case JINJA_OP_IN:
        return jinja_contains(r, b, a, out);
    case JINJA_OP_NOT_IN:
        TRY(jinja_contains(r, b, a, out));
        *out = !*out;
        return OK;
    default:
        break;
    }
    /* A NaN is in no order with anything. */
    if ((a->type == JINJA_FLOAT && isnan(a->f)) ||
        (b->type == JINJA_FLOAT && isnan(b->f))) {
        *out = false;
        return OK;
    }
    TRY(jinja_order(r, a, b, symbols[op], &order));
    *out = op == JINJA_OP_LT   ? order < 0
           : op == JINJA_OP_LE ? order <= 0
           : op == JINJA_OP_GT ? order > 0
                               : order >= 0;
    return OK;
}
