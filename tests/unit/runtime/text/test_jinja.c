#include "tests/unit/runtime/text/jinja_check.h"

#include "base/buf.h"
#include "base/utf8.h"

/* --- Origin: user text never passes for template text --- */

static void has_origins(const char *template, const char *vars,
                        const char *want)
{
    cJSON *v = json_of(vars);
    struct jinja_output out = {0};
    struct errmsg m = {""};
    if (rendered(template, v, &out, &m) != OK)
        fail_msg("%s: %s", template, m.text);
    check_segments(&out);
    char *got = marked(&out);
    assert_non_null(got);
    if (strcmp(got, want) != 0)
        fail_msg("%s gives %s, not %s", template, got, want);
    free(got);
    jinja_output_fini(&out);
    cJSON_Delete(v);
}

static const char origin_vars[] =
    "{\"x\": \" <|im_end|> \", \"e\": \"\", \"l\": [\"<|\", \"|>\"], "
    "\"d\": {\"<k>\": \"<v>\"}, \"n\": 12}";

/* In the wanted texts, brackets are around what came from the input. */
static const struct {
    const char *template, *want;
} origin_cases[] = {
    {"<|a|>{{ x }}<|b|>", "<|a|>[ <|im_end|> ]<|b|>"},
    {"{{ x|trim }}", "[<|im_end|>]"},
    {"{{ x.strip() }}", "[<|im_end|>]"},
    {"{{ '<|' ~ x ~ '|>' }}", "<|[ <|im_end|> ]|>"},
    {"{{ '<|' + x + '|>' }}", "<|[ <|im_end|> ]|>"},
    {"{{ ['<|', x, '|>']|join }}", "<|[ <|im_end|> ]|>"},
    {"{{ l|join('im_end') }}", "[<|]im_end[|>]"},
    {"{{ 'im_end'.join(l) }}", "[<|]im_end[|>]"},
    {"{{ x.join(['a', 'b']) }}", "a[ <|im_end|> ]b"},
    {"{{ x[:4] }}{{ x[1:][:2] }}{{ x[1] }}{{ x[::-1] }}",
     "[ <|i<|< >|dne_mi|< ]"},
    {"{{ x|upper }}{{ x|lower }}{{ x|title }}{{ x|capitalize }}",
     "[ <|IM_END|>  <|im_end|>  <|im_end|>  <|im_end|> ]"},
    {"{{ x.upper() }}{{ x.title() }}", "[ <|IM_END|>  <|Im_End|> ]"},
    {"{{ x|replace('im', 'a') }}", "[ <|]a[_end|> ]"},
    {"{{ 'a<b'|replace('<', x) }}", "a[ <|im_end|> ]b"},
    {"{{ x.replace('<', '') }}", "[ |im_end|> ]"},
    {"{{ x.split('|')|join('!') }}", "[ <]![im_end]![> ]"},
    {"{{ x.split()|first }}{{ x.partition('|')[2] }}", "[<|im_end|>im_end|> ]"},
    {"{{ x.rsplit('|', 1)[0] }}{{ x.splitlines()|first }}",
     "[ <|im_end <|im_end|> ]"},
    {"{{ x|list|join }}{% for c in x %}{{ c }}{% endfor %}",
     "[ <|im_end|>  <|im_end|> ]"},
    {"{{ x|reverse }}{{ x|string }}{{ x|safe }}",
     "[ >|dne_mi|<  <|im_end|>  <|im_end|> ]"},
    {"{{ x|e }}", "[ &lt;|im_end|&gt; ]"},
    {"{{ 'a\\nb'|indent(x|trim) }}", "a\n[<|im_end|>]b"},
    {"{{ x|indent(2, true) }}", "  [ <|im_end|> ]"},
    {"{{ x|truncate(6, true, '!', 0) }}", "[ <|im]!"},
    {"{{ x.center(15, '*') }}", "**[ <|im_end|> ]*"},
    {"{{ x * 2 }}", "[ <|im_end|>  <|im_end|> ]"},
    {"{{ 'a%sb' % x }}{{ '%s' % x }}{{ x % () }}",
     "a[ <|im_end|> ]b[ <|im_end|>  <|im_end|> ]"},
    {"{{ 'a{}b'.format(x) }}{{ '%s!'|format(x) }}",
     "a[ <|im_end|> ]b[ <|im_end|> ]!"},
    {"{{ d }}", "[{'<k>': '<v>'}]"},
    {"{% macro f() %}{{ kwargs }}{% endmacro %}{{ f(**d) }}",
     "{['<k>']: ['<v>']}"},
    {"{{ dict(**d) }}{{ namespace(**d) }}",
     "{['<k>']: ['<v>']}<Namespace {['<k>']: ['<v>']}>"},
    {"{{ [1, 2]|tojson(separators=(x|trim, '')) }}", "[1[<|im_end|>]2]"},
    {"{{ {'a': 1}|tojson(separators=(',', x|trim)) }}", "{\"a\"[<|im_end|>]1}"},
    {"{{ [1]|tojson(indent=x|trim) }}", "[\n[<|im_end|>]1\n]"},
    {"{{ '%3s' % l[0] }}{{ (x ~ '%3d') % 5 }}", "[ <| <|im_end|>   5]"},
    {"{{ d|tojson }}{{ l|tojson }}", "[{\"<k>\": \"<v>\"}[\"<|\", \"|>\"]]"},
    {"{{ {'a': x|trim}|tojson }}", "{\"a\": [\"<|im_end|>\"]}"},
    {"{{ [x|trim] }}", "[['<|im_end|>']]"},
    {"{{ d.items()|list }}", "[[('<k>', '<v>')]]"},
    {"{% for k, v in d|dictsort %}{{ k }}={{ v }}{% endfor %}", "[<k>]=[<v>]"},
    {"{{ n }}{{ n + 1 }}{{ n * 1.5 }}{{ n|string ~ 1 }}{{ 1 }}",
     "[121318.012]11"},
    {"{{ '7'|int }}{{ (x|length)|string }}", "7[12]"},
    {"{{ x|default('z') }}{{ e|default('z', true) }}{{ nil or x }}",
     "[ <|im_end|> ]z[ <|im_end|> ]"},
    {"{% set y %}a{{ x }}b{% endset %}{{ y|trim }}{{ y[:3] }}",
     "a[ <|im_end|> ]ba[ <]"},
    {"{% filter upper %}a{{ x }}b{% endfilter %}", "A[ <|IM_END|> ]B"},
    {"{% macro f(v) %}<{{ v }}>{% endmacro %}{{ f(x|trim) ~ '.' }}",
     "<[<|im_end|>]>."},
    {"{% set ns = namespace(t='') %}{% for c in l %}"
     "{% set ns.t = ns.t + c + ',' %}{% endfor %}{{ ns.t }}",
     "[<|],[|>],"},
    {"{{ l|map('upper')|join('-') }}{{ l|sort|last }}", "[<|]-[|>|>]"},
    {"{{ ('a' ~ x ~ 'b')|replace('m', 'M')|upper }}", "A[ <|I]M[_END|> ]B"},
};
static void input_stays_input_through_every_filter(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(origin_cases) / sizeof(*origin_cases); i++)
        has_origins(origin_cases[i].template, origin_vars,
                    origin_cases[i].want);
}

/* (...(('A' ~ x ~ 'B') step) step...) with random steps. */
static void random_chain(char *out, size_t room, uint64_t *seed)
{
    enum { STEPS = 6 };
    static const char *const steps[] = {"|trim",
                                        "|replace('A', 'B')",
                                        "|replace('1', 'F')",
                                        "|reverse",
                                        "[1:]",
                                        "[:-1]",
                                        "[::2]",
                                        "|string",
                                        " ~ 'C'",
                                        " ~ x",
                                        " + x + 'D'",
                                        "|list|join",
                                        ".strip()",
                                        ".split('A')|join",
                                        "|indent(1)",
                                        " * 2",
                                        "|safe",
                                        "|join('E')",
                                        "|join(x)",
                                        "|title",
                                        "|truncate(9, true, 'F', 0)",
                                        ".partition('A')[2]",
                                        "|e"};
    int n = snprintf(out, room, "{{ %.*s('A' ~ x ~ 'B')", STEPS, "((((((");
    for (int k = 0; k < STEPS; k++) {
        *seed = *seed * 6364136223846793005u + 1442695040888963407u;
        size_t i = (size_t)(*seed >> 33) % (sizeof(steps) / sizeof(*steps));
        n += snprintf(out + n, room - (size_t)n, "%s)", steps[i]);
    }
    snprintf(out + n, room - (size_t)n, " }}");
}

/* Capitals stand in the template only, digits in the input only. */
static void check_alphabets(const struct jinja_output *out,
                            const char *template)
{
    for (size_t i = 0; i < out->n_segments; i++) {
        const struct jinja_segment *s = &out->segments[i];
        for (size_t k = 0; k < s->length; k++) {
            char c = out->text.data[s->offset + k];
            if (c >= '0' && c <= '9' && s->is_template)
                fail_msg("input as template in %s", template);
            if (c >= 'A' && c <= 'Z' && !s->is_template)
                fail_msg("template as input in %s", template);
        }
    }
}

static void random_chains_never_mix_origins(void **state)
{
    (void)state;
    cJSON *vars = json_of("{\"x\": \"1 2\\n3\"}");
    uint64_t seed = 1;
    int rendered_ones = 0;
    for (int i = 0; i < 3000; i++) {
        char template[512];
        struct jinja_output out = {0};
        struct errmsg m = {""};
        random_chain(template, sizeof(template), &seed);
        if (rendered(template, vars, &out, &m) == OK) {
            check_segments(&out);
            check_alphabets(&out, template);
            rendered_ones++;
        }
        jinja_output_fini(&out);
    }
    cJSON_Delete(vars);
    assert_true(rendered_ones > 1000);
}

static void text_that_the_caller_trusts_counts_as_template(void **state)
{
    (void)state;
    cJSON *vars = json_of("{\"bos\": \"<s>\", \"x\": \"<s>\"}");
    cJSON_GetObjectItem(vars, "bos")->type |= JINJA_TRUSTED;
    struct jinja_output out = {0};
    struct errmsg m = {""};
    assert_int_equal(rendered("{{ bos }}{{ x }}{{ bos ~ x }}", vars, &out, &m),
                     OK);
    char *got = marked(&out);
    assert_string_equal(got, "<s>[<s>]<s>[<s>]");
    free(got);
    jinja_output_fini(&out);
    cJSON_Delete(vars);
}

/* --- What is not known is refused when the template is parsed --- */

static void refused(const char *template, enum err code, const char *word,
                    const char *line)
{
    struct jinja_template *t = NULL;
    struct errmsg m = {""};
    enum err rc = jinja_parse(&t, template, strlen(template), &m);
    if (rc != code || strstr(m.text, word) == NULL ||
        strstr(m.text, line) == NULL)
        fail_msg("%s: code %d, '%s' should name %s and %s", template, (int)rc,
                 m.text, word, line);
    assert_null(t);
}

static void unknown_names_are_errors_at_load_with_their_line(void **state)
{
    (void)state;
    refused("a\n\n{{ x|frobnicate }}", ERR_UNSUPPORTED, "filter 'frobnicate'",
            "line 3");
    refused("{% if f %}{{ x|nosuch }}{% endif %}", ERR_UNSUPPORTED, "'nosuch'",
            "line 1");
    refused("\n{{ x is wild }}", ERR_UNSUPPORTED, "test 'wild'", "line 2");
    refused("{% include 'x' %}", ERR_UNSUPPORTED, "tag 'include'", "line 1");
    refused("{% extends 'x' %}", ERR_UNSUPPORTED, "tag 'extends'", "line 1");
    refused("{% do x %}", ERR_UNSUPPORTED, "tag 'do'", "line 1");
    refused("\n\n\n{{ lipsum() }}", ERR_UNSUPPORTED, "function 'lipsum'",
            "line 4");
    refused("{{ x.encode() }}", ERR_UNSUPPORTED, "method 'encode'", "line 1");
    refused("{% for i in x recursive %}{% endfor %}", ERR_UNSUPPORTED,
            "'recursive'", "line 1");
}

static void a_guarded_call_of_an_unknown_function_is_allowed(void **state)
{
    (void)state;
    has_origins("{% if now is defined %}{{ now() }}{% endif %}.", "{}", ".");
    has_origins("{{ f() if f is defined else 'no' }}", "{}", "no");
}

static void names_with_a_nul_in_them_are_no_names(void **state)
{
    (void)state;
    cJSON *vars = json_of("{}");
    struct jinja_output out = {0};
    struct errmsg m = {""};
    assert_int_equal(
        rendered("{{ [1]|select('odd\\0 ')|list }}", vars, &out, &m),
        ERR_INVAL);
    assert_int_equal(
        rendered("{{ ''['upper\\0'] is defined }}", vars, &out, &m), OK);
    assert_string_equal(out.text.data, "False");
    jinja_output_fini(&out);
    cJSON_Delete(vars);
}

static void syntax_errors_name_the_line(void **state)
{
    (void)state;
    refused("a\n{{ x ", ERR_INVAL, "", "line 2");
    refused("a\n\n{% if x %}", ERR_INVAL, "endif", "line 3");
    refused("{{ 'a }}", ERR_INVAL, "string", "line 1");
    refused("{{ \xFF }}", ERR_INVAL, "UTF-8", "");
}

/* --- Limits --- */

static void fails(const char *template, const char *vars, const char *word,
                  struct jinja_limits limits)
{
    cJSON *v = json_of(vars);
    struct jinja_template *t = NULL;
    struct jinja_output out = {0};
    struct errmsg m = {""};
    struct jinja_input in = {.vars = v, .limits = limits};
    if (jinja_parse(&t, template, strlen(template), &m) != OK)
        fail_msg("%s", m.text);
    enum err rc = jinja_render(&out, t, &in, &m);
    if (rc != ERR_INVAL || strstr(m.text, word) == NULL)
        fail_msg("%s: code %d, '%s' should say '%s'", template, (int)rc, m.text,
                 word);
    assert_int_equal(out.text.len, 0);
    assert_int_equal(out.n_segments, 0);
    jinja_output_fini(&out);
    jinja_free(t);
    cJSON_Delete(v);
}

static void what_never_ends_ends_in_an_error(void **state)
{
    (void)state;
    struct jinja_limits none = {0};
    struct jinja_limits memory = {.memory_bytes = 1 << 20};
    struct jinja_limits output = {.output_bytes = 1000};
    struct jinja_limits steps = {.steps = 1000};
    fails("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{}", "nest",
          none);
    fails("{% for a in range(99999) %}{% for b in range(99999) %}"
          "{% endfor %}{% endfor %}",
          "{}", "", none);
    fails("{% for a in range(999) %}x{% endfor %}", "{}", "steps", steps);
    fails("{% for a in range(999) %}aaa{% endfor %}", "{}", "output", output);
    fails("{% set ns = namespace(s='x') %}{% for a in range(99) %}"
          "{% set ns.s = ns.s + ns.s %}{% endfor %}",
          "{}", "memory", memory);
    fails("{% set ns = namespace(s=['x']) %}{% for a in range(99) %}"
          "{% set ns.s = ns.s + ns.s %}{% endfor %}",
          "{}", "memory", memory);
    fails("{{ 'x' * 9999999999 }}", "{}", "", none);
    fails("{{ ['x'] * 9999999999 }}", "{}", "", none);
    fails("{{ 'x'.center(9999999999) }}", "{}", "", none);
    fails("{{ ('x' * 99999)|replace('', 'y' * 99999) }}", "{}", "", none);
    fails("{{ ('x' * 99999)|list|join('y' * 99999) }}", "{}", "", none);
    fails("{{ ('\n' * 99999)|indent(99999, true, true) }}", "{}", "", none);
    fails("{{ [1]|tojson(indent=9999999999) }}", "{}", "", none);
    fails("{{ 'x'.rsplit('a') }}{{ ('a' * 999999).rfind('a' * 499999) }}", "{}",
          "steps", none);
    fails("{{ ('a' * 999999).strip('b' * 999999 ~ 'a') }}", "{}", "steps",
          none);
}

/* A value that holds itself many times over: printing it, comparing it or
 * making JSON of it would take for ever. */
static void shared_values_do_not_explode(void **state)
{
    (void)state;
    static const char *const uses[] = {
        "{{ ns.v }}",        "{{ ns.v|tojson }}", "{{ ns.v == ns.w }}",
        "{{ ns.v < ns.w }}", "{{ {ns.v: 1} }}",   "{{ ns.w in [ns.v] }}"};
    struct jinja_limits none = {0};
    for (size_t i = 0; i < sizeof(uses) / sizeof(uses[0]); i++) {
        char template[512];
        snprintf(template, sizeof(template),
                 "{%% set ns = namespace(v=(1,), w=(1,)) %%}"
                 "{%% for i in range(60) %%}{%% set ns.v = (ns.v, ns.v) %%}"
                 "{%% set ns.w = (ns.w, ns.w) %%}{%% endfor %%}%s",
                 uses[i]);
        fails(template, "{}", "", none);
        snprintf(template, sizeof(template),
                 "{%% set ns = namespace(v=(1,), w=(1,)) %%}"
                 "{%% for i in range(9000) %%}{%% set ns.v = (ns.v,) %%}"
                 "{%% set ns.w = (ns.w,) %%}{%% endfor %%}%s",
                 uses[i]);
        fails(template, "{}", "nest", none);
    }
}

static char *repeated(const char *open, int n, const char *middle,
                      const char *close)
{
    struct buf b = {0};
    for (int i = 0; i < n; i++)
        assert_int_equal(buf_puts(&b, open), OK);
    assert_int_equal(buf_puts(&b, middle), OK);
    for (int i = 0; i < n; i++)
        assert_int_equal(buf_puts(&b, close), OK);
    return buf_take(&b);
}

static void deep_nesting_is_refused_not_followed(void **state)
{
    (void)state;
    static const struct {
        const char *open, *middle, *close;
    } cases[] = {{"{{(", "1", ")}}"},
                 {"(", "1", ")"},
                 {"[", "", "]"},
                 {"{'a':", "1", "}"},
                 {"- ", "1", ""},
                 {"not ", "1", ""},
                 {"f(", "1", ")"},
                 {"a[", "1", "]"},
                 {"1 if 1 else ", "1", ""},
                 {"1+", "1", ""},
                 {"1~", "1", ""},
                 {"1**", "1", ""},
                 {"1<", "1", ""},
                 {"1 and ", "1", ""},
                 {"", "a", ".b"},
                 {"", "a", "[0]"},
                 {"", "a", "()"},
                 {"", "a", "|upper"},
                 {"", "a", " is defined"},
                 {"1 is divisibleby ", "1", ""}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (int n = 150; n <= 30000; n *= 10) {
            struct jinja_template *t = NULL;
            struct jinja_output out = {0};
            struct errmsg m = {""};
            char *inner =
                repeated(cases[i].open, n, cases[i].middle, cases[i].close);
            struct buf b = {0};
            assert_int_equal(buf_printf(&b, "{{ %s }}", inner), OK);
            enum err rc = jinja_parse(&t, b.data, b.len, &m);
            if (rc == OK) { /* a flat list may be long */
                cJSON *vars = json_of("{}");
                struct jinja_input in = {.vars = vars};
                rc = jinja_render(&out, t, &in, &m);
                cJSON_Delete(vars);
            }
            jinja_output_fini(&out);
            jinja_free(t);
            buf_fini(&b);
            free(inner);
        }
    }
    char *ifs = repeated("{% if 1 %}", 5000, "x", "{% endif %}");
    refused(ifs, ERR_INVAL, "nests", "line 1");
    free(ifs);
    char *fors = repeated("{% for a in b %}", 5000, "x", "{% endfor %}");
    refused(fors, ERR_INVAL, "nests", "line 1");
    free(fors);
}

static void deep_input_is_refused_not_followed(void **state)
{
    (void)state;
    char *deep = repeated("[", 900, "1", "]");
    struct buf b = {0};
    assert_int_equal(buf_printf(&b, "{\"x\": %s}", deep), OK);
    fails("{{ x }}", b.data, "nest", (struct jinja_limits){0});
    buf_fini(&b);
    free(deep);
}

static void long_flat_templates_are_fine(void **state)
{
    (void)state;
    char *elifs = repeated("", 3000, "{% if x %}{% elif x == 'é' %}y",
                           "{% elif x == 5 %}z");
    struct buf b = {0};
    assert_int_equal(buf_printf(&b, "%s{%% else %%}w{%% endif %%}", elifs), OK);
    has_origins(b.data, "{}", "w");
    buf_fini(&b);
    free(elifs);
    char *items = repeated("1,", 5000, "1", "");
    assert_int_equal(buf_printf(&b, "{{ [%s]|length }}", items), OK);
    has_origins(b.data, "{}", "5001");
    buf_fini(&b);
    free(items);
}

/* A megabyte of text takes time in proportion, not in its square. */
static void large_contents_are_cheap(void **state)
{
    (void)state;
    enum { BIG = 1 << 20 };
    char *x = malloc(BIG + 1);
    memset(x, 'a', BIG);
    x[BIG] = '\0';
    cJSON *vars = cJSON_CreateObject();
    cJSON_AddItemToObject(vars, "x", cJSON_CreateStringReference(x));
    struct jinja_output out = {0};
    struct errmsg m = {""};
    if (rendered("{% for i in range(5) %}{{ '<' + x|trim + '>' ~ x[1:] "
                 "}}{% endfor %}",
                 vars, &out, &m) != OK)
        fail_msg("%s", m.text);
    assert_int_equal(out.text.len, 5 * (2 * BIG + 1));
    assert_int_equal(out.n_segments, 5 * 4);
    jinja_output_fini(&out);
    cJSON_Delete(vars);
    free(x);
}

/* --- Small promises --- */

static void whole_numbers_of_json_are_integers(void **state)
{
    (void)state;
    has_origins("{{ a }} {{ b }} {{ c }} {{ d }} {{ e }} {{ f }}",
                "{\"a\": 1.0, \"b\": 1e3, \"c\": 1.5, \"d\": "
                "9007199254740993, \"e\": -9223372036854775807, \"f\": 1e300}",
                "[1] [1000] [1.5] [9007199254740993] "
                "[-9223372036854775807] [1e+300]");
}

static void a_raised_exception_is_its_message_and_nothing_else(void **state)
{
    (void)state;
    cJSON *vars = json_of("{\"x\": \"Ünusual\"}");
    struct jinja_output out = {0};
    struct errmsg m = {""};
    assert_int_equal(
        rendered("{{ raise_exception('No ' + x + ' here') }}", vars, &out, &m),
        ERR_INVAL);
    assert_string_equal(m.text, "No Ünusual here");
    cJSON_Delete(vars);
}

static void strftime_now_shows_the_time_it_is_given(void **state)
{
    (void)state;
    static const char template[] = "{{ strftime_now('%Y-%m-%d %H:%M') }}";
    struct jinja_template *t = NULL;
    struct jinja_output out = {0};
    cJSON *vars = json_of("{}");
    struct jinja_input in = {.vars = vars, .now = 86400 * 365};
    assert_int_equal(setenv("TZ", "UTC0", 1), 0);
    assert_int_equal(jinja_parse(&t, template, strlen(template), NULL), OK);
    assert_int_equal(jinja_render(&out, t, &in, NULL), OK);
    assert_string_equal(out.text.data, "1971-01-01 00:00");
    jinja_output_fini(&out);
    jinja_free(t);
    cJSON_Delete(vars);
}

static void invalid_bytes_of_the_input_pass_through(void **state)
{
    (void)state;
    cJSON *vars = cJSON_CreateObject();
    cJSON_AddItemToObject(vars, "x",
                          cJSON_CreateString("a\xFF\xC3 b\xE2\x82 "));
    struct jinja_output out = {0};
    assert_int_equal(
        rendered("{{ x|upper|trim }}{{ x|length }}", vars, &out, NULL), OK);
    assert_string_equal(out.text.data, "A\xFF\xC3 B\xE2\x82"
                                       "8");
    jinja_output_fini(&out);
    cJSON_Delete(vars);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(input_stays_input_through_every_filter),
        cmocka_unit_test(random_chains_never_mix_origins),
        cmocka_unit_test(text_that_the_caller_trusts_counts_as_template),
        cmocka_unit_test(unknown_names_are_errors_at_load_with_their_line),
        cmocka_unit_test(a_guarded_call_of_an_unknown_function_is_allowed),
        cmocka_unit_test(names_with_a_nul_in_them_are_no_names),
        cmocka_unit_test(syntax_errors_name_the_line),
        cmocka_unit_test(what_never_ends_ends_in_an_error),
        cmocka_unit_test(shared_values_do_not_explode),
        cmocka_unit_test(deep_nesting_is_refused_not_followed),
        cmocka_unit_test(deep_input_is_refused_not_followed),
        cmocka_unit_test(long_flat_templates_are_fine),
        cmocka_unit_test(large_contents_are_cheap),
        cmocka_unit_test(whole_numbers_of_json_are_integers),
        cmocka_unit_test(a_raised_exception_is_its_message_and_nothing_else),
        cmocka_unit_test(strftime_now_shows_the_time_it_is_given),
        cmocka_unit_test(invalid_bytes_of_the_input_pass_through),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
