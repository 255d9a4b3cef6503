#!/usr/bin/env python3
"""Writes tests/golden/jinja/*.json: what Python's jinja2 renders.

    pip install jinja2==3.1.6 gguf
    tests/tools/make_jinja_golden.py MODEL.gguf...

The environment is set up as Hugging Face's transformers sets it up for chat
templates: sandboxed and immutable, trim_blocks, lstrip_blocks, break and
continue, a tojson that is json.dumps, raise_exception and strftime_now.

    snippets.json  the templates of jinja_snippets.py, one feature each
    random.json    templates made of random expressions (seeded)
    chats.json     chats through the templates of the models (Apache-2.0, as
                   their files carry them) and through three of our own

An entry has "text", or "error": the reference refuses it. chats.json holds
requests as clients send them; prepare() below is what chat.h promises to do
with them, written a second time.
"""

import copy
import json
import pathlib
import random
import sys

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

from jinja_chats import CHATS, TEMPLATES
from jinja_snippets import SNIPPETS, VARS

OUT = pathlib.Path(__file__).resolve().parent.parent / "golden" / "jinja"


class Generation(jinja2.ext.Extension):
    """{% generation %} marks what the assistant says, for training; when a
    chat is rendered it is a block with variables of its own."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("render")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def render(self, caller):
        return caller()


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def strftime_now(fmt):
    # The tests use formats that show no time.
    return fmt.replace("%%", "%")


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[Generation, jinja2.ext.loopcontrols],
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


ENV = environment()


def render(template, variables):
    """The text, or None where the reference refuses."""
    try:
        text = ENV.from_string(template).render(**copy.deepcopy(variables))
        text.encode()
        return text
    except Exception:
        return None


def entry(template, variables):
    text = render(template, variables)
    return {"template": template, **({"error": True} if text is None else {"text": text})}


# --- random templates ---


class Maker:
    """Random expressions that mean something often enough."""

    STRINGS = ["''", "'a'", "'Ab c'", "' x '", "'é,b'", "s", "w", "u", "e", "h"]
    NUMBERS = ["0", "1", "2", "-3", "n", "x", "neg", "1.5", "true", "big"]
    LISTS = ["[]", "l", "names", "[1, 'a', none]", "(1, 2)", "nest.list", "d.keys()|list"]
    OTHERS = ["none", "d", "undefd", "f", "{}", "{'a': 1, 'b': [2]}", "msgs", "people"]
    TEXT_FILTERS = [
        "upper",
        "lower",
        "trim",
        "title",
        "capitalize",
        "string",
        "e",
        "safe",
        "replace('a', 'b')",
        "indent(1)",
        "length",
        "list",
        "first",
        "last",
        "reverse",
        "tojson",
        "int",
        "float",
        "default('D')",
        "join('-')",
        "truncate(6)",
    ]
    LIST_FILTERS = [
        "length",
        "first",
        "last",
        "join(',')",
        "list",
        "sort",
        "reverse|list",
        "unique|list",
        "map('string')|list",
        "select|list",
        "reject('none')|list",
        "tojson",
        "max",
        "min",
        "sum",
        "string",
        "tojson(indent=1)",
        "default([])",
        "map('upper')|join",
    ]
    NUMBER_FILTERS = ["abs", "int", "float", "round", "string", "round(1)", "tojson", "default(0)"]
    METHODS = [
        "upper()",
        "strip()",
        "split()",
        "split(',')",
        "split('a', 1)",
        "replace('a', '')",
        "startswith('a')",
        "find('b')",
        "title()",
        "rsplit(none, 1)",
        "lstrip('a ')",
        "count('a')",
        "splitlines()",
        "endswith(('c', 'b'))",
        "center(8)",
        "partition('b')",
    ]
    TESTS = [
        "defined",
        "none",
        "string",
        "number",
        "mapping",
        "iterable",
        "sequence",
        "odd",
        "true",
        "integer",
        "float",
        "boolean",
        "lower",
        "in [1, 'a']",
        "eq 1",
        "divisibleby 2",
        "gt 0",
    ]
    OPS = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", ">=", "in", "not in", "and", "or"]

    def __init__(self, seed):
        self.r = random.Random(seed)

    def pick(self, items):
        return self.r.choice(items)

    def text(self, depth):
        if depth <= 0 or self.r.random() < 0.3:
            return self.pick(self.STRINGS)
        kind = self.r.randrange(5)
        inner = self.text(depth - 1)
        if kind == 0:
            return f"({inner} + {self.text(depth - 1)})"
        if kind == 1:
            return f"({inner} ~ {self.any(depth - 1)})"
        if kind == 2:
            return f"{inner}.{self.pick(self.METHODS)}"
        if kind == 3:
            return f"({inner}|{self.pick(self.TEXT_FILTERS)})"
        return f"{inner}[{self.slice()}]"

    def slice(self):
        part = lambda: self.pick(["", "0", "1", "-1", "2", "-3", "9"])
        return self.pick(
            ["0", "-1", "1", f"{part()}:{part()}", f"{part()}:{part()}:{self.pick(['1', '2', '-1', '-2'])}"]
        )

    def number(self, depth):
        if depth <= 0 or self.r.random() < 0.3:
            return self.pick(self.NUMBERS)
        if self.r.random() < 0.3:
            return f"({self.number(depth - 1)}|{self.pick(self.NUMBER_FILTERS)})"
        op = self.pick(["+", "-", "*", "/", "//", "%"])
        return f"({self.number(depth - 1)} {op} {self.number(depth - 1)})"

    def list(self, depth):
        if depth <= 0 or self.r.random() < 0.4:
            return self.pick(self.LISTS)
        kind = self.r.randrange(4)
        if kind == 0:
            return f"({self.list(depth - 1)} + {self.list(depth - 1)})"
        if kind == 1:
            return f"({self.list(depth - 1)}|{self.pick(self.LIST_FILTERS)})"
        if kind == 2:
            return f"[{self.any(depth - 1)}, {self.any(depth - 1)}]"
        return f"{self.list(depth - 1)}[{self.slice()}]"

    def any(self, depth):
        kind = self.r.randrange(9)
        if kind < 2:
            return self.text(depth)
        if kind < 4:
            return self.number(depth)
        if kind < 6:
            return self.list(depth)
        if kind == 6 or depth <= 0:
            return self.pick(self.OTHERS)
        if kind == 7:
            return f"({self.any(depth - 1)} is {self.pick(['', 'not '])}{self.pick(self.TESTS)})"
        left, right = self.any(depth - 1), self.any(depth - 1)
        if self.r.random() < 0.2:
            return f"({left} if {self.any(depth - 1)} else {right})"
        return f"({left} {self.pick(self.OPS)} {right})"

    def gap(self):
        return self.pick(["", " ", "\n", "  \n", "\n  ", "x", "\t\n\n "])

    def tag(self, body):
        return "{%" + self.pick(["", "", "-", "+"]) + f" {body} " + self.pick(["", "", "-", "+"]) + "%}"

    def body(self, depth):
        out = self.gap()
        for _ in range(self.r.randrange(1, 3)):
            out += self.statement(depth) + self.gap()
        return out

    def statement(self, depth):
        kind = self.r.randrange(6) if depth > 0 else self.r.randrange(2)
        if kind <= 1:
            return "{{" + self.pick(["", "-"]) + f" {self.any(2)} " + self.pick(["", "-"]) + "}}"
        if kind == 2:
            return (
                self.tag(f"if {self.any(1)}")
                + self.body(depth - 1)
                + self.tag("else")
                + self.body(depth - 1)
                + self.tag("endif")
            )
        if kind == 3:
            inner = self.pick(["{{ i }}", "{{ loop.index }}", "{{ loop.last }}", "{{ loop.length }}"])
            return self.tag(f"for i in {self.list(1)}") + self.body(depth - 1) + inner + self.tag("endfor")
        if kind == 4:
            name = self.pick("abc")
            return self.tag(f"set {name} = {self.any(2)}") + self.gap() + "{{ " + self.pick("abc") + " }}"
        return "{#" + self.pick(["", "-", "+"]) + " c " + self.pick(["", "-", "+"]) + "#}"


def printable(text):
    """Results with addresses in them differ from run to run."""
    return text is None or not any(
        s in text for s in (" object at 0x", "<bound method", "<built-in", "<function", "<generator")
    )


def random_templates(count, seed):
    maker, out, errors = Maker(seed), [], 0
    while len(out) < count:
        template = maker.body(2) if len(out) % 3 == 0 else "{{ " + maker.any(3) + " }}"
        e = entry(template, VARS)
        if not printable(e.get("text")) or len(e.get("text", "")) > 2000:
            continue
        # Most random expressions are errors; keep a share of them.
        if "error" in e:
            errors += 1
            if errors * 5 > count:
                continue
        out.append(e)
    return out


# --- chats ---


def content_text(content):
    if isinstance(content, list):
        return "".join(p.get("text", p.get("refusal")) for p in content)
    return content


def prepare(template, chat):
    """The variables of a request, as chat.h describes them."""
    messages = copy.deepcopy(chat["messages"])
    for m in messages:
        if m["role"] == "developer" and "developer" not in template:
            m["role"] = "system"
        content = content_text(m.get("content"))
        if content is None and not (m.get("tool_calls") and "tool_calls" in template):
            content = ""
        m["content"] = content
        for call in m.get("tool_calls") or []:
            f = call.get("function", {})
            if isinstance(f.get("arguments"), str):
                try:
                    parsed = json.loads(f["arguments"]) if f["arguments"].strip() else {}
                except ValueError:
                    parsed = None
                if isinstance(parsed, dict):
                    f["arguments"] = parsed
    variables = {
        "messages": messages,
        "tools": chat.get("tools") or None,
        "documents": None,
        "add_generation_prompt": chat.get("add_generation_prompt", False),
        "bos_token": "<s>",
        "eos_token": "</s>",
    }
    variables.update(chat.get("kwargs", {}))
    return variables


def open_ended(template, variables):
    """continue_final_message: all text up to the end of the last message."""
    mark = "MARK-OF-THE-END "
    last = variables["messages"][-1]
    last["content"] = (last["content"] or "") + mark
    text = render(template, variables)
    if text is None or mark.strip() not in text:
        return None
    at = text.rindex(mark.strip())
    if text[at : at + len(mark)] == mark:
        return text[:at]
    return text[:at].rstrip()


def chats(templates):
    out = []
    for name, template in templates.items():
        for i, chat in enumerate(CHATS):
            variables = prepare(template, chat)
            if name == "indices" and chat.get("continue_final_message"):
                continue  # prints the last message three times
            if chat.get("continue_final_message"):
                text = open_ended(template, variables)
            else:
                text = render(template, variables)
            out.append({"template": name, "chat": i, **({"error": True} if text is None else {"text": text})})
    return {"templates": templates, "chats": CHATS, "results": out}


def model_template(path):
    import gguf

    fields = gguf.GGUFReader(path).fields
    name = fields["general.name"].contents()
    return name, fields["tokenizer.chat_template"].contents()


def save(name, data):
    OUT.mkdir(parents=True, exist_ok=True)
    with open(OUT / name, "w", encoding="utf-8") as f:
        json.dump(data, f, ensure_ascii=False, indent=0)
        f.write("\n")


def save_corpus(templates):
    """Seeds of tests/fuzz/fuzz_jinja.c: some of every topic, and the chats."""
    corpus = OUT.parent.parent / "fuzz" / "corpus" / "jinja"
    corpus.mkdir(parents=True, exist_ok=True)
    for name, template in templates.items():
        (corpus / f"chat-{name.split()[0].lower()}").write_text(template, newline="")
    for topic, items in SNIPPETS.items():
        good = [t for t in items if render(t, VARS) and t.encode().isascii()]
        for i, t in enumerate(sorted(good, key=len)[-9:]):
            (corpus / f"{topic.replace(' ', '-')}-{i}").write_text(t, newline="")


def main():
    templates = dict(model_template(path) for path in sys.argv[1:])
    assert len(templates) == 2, "give the two model files"
    templates.update(TEMPLATES)
    made_by = f"make_jinja_golden.py, jinja2 {jinja2.__version__}"
    cases = [entry(t, VARS) for topic in SNIPPETS.values() for t in topic]
    for e in cases:
        assert printable(e.get("text")), e
    save("snippets.json", {"made_by": made_by, "vars": VARS, "cases": cases})
    save("random.json", {"made_by": made_by, "vars": VARS, "cases": random_templates(400, 20260)})
    save("chats.json", {"made_by": made_by, **chats(templates)})
    save_corpus(templates)
    print(len(cases), "snippets,", sum("error" in e for e in cases), "of them errors")


if __name__ == "__main__":
    main()
