"""The lint must see what it is for: one bad file for each rule."""
import importlib.util
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location(
    "lint", Path(__file__).with_name("lint.py"))
lint = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(lint)

LONG = "static void f(void)\n{\n" + "    g();\n" * 120 + "}\n"
MANY = "int f(int a, int b, int c, int d, int e, int g, int h)\n{\n}\n"

BAD = [
    ("layers", "cache/x.c", '#include "runtime/model/model.h"\n'),
    ("layers", "cache/x.c", '#include "../base/err.h"\n'),
    ("layers", "server/x.c", '#include "cache/pool.h"\n'),
    ("layers", "cache/x.c", '#include "base/json_internal.h"\n'),
    ("lengths", "base/x.c", "\n" * 1001),
    ("lengths", "base/x.c", LONG),
    ("lengths", "base/x.c", MANY),
    ("environment", "server/x.c", 'char *p = getenv("HOME");\n'),
    ("process_exit", "server/x.c", "void f(void)\n{\n    exit(1);\n}\n"),
    ("allocation", "cache/x.c",
     "static void step(void)\n{\n    p = malloc(4);\n}\n"),
    ("unsafe_calls", "base/x.c", "void f(void)\n{\n    sprintf(a, b);\n}\n"),
    ("static_state", "cache/x.c", "static int counter;\n"),
    ("static_state", "cache/x.c", "static const char *name = 0;\n"),
    ("static_state", "cache/x.c", "void f(void)\n{\n    static int n = 0;\n}\n"),
    ("arithmetic_flags", "Makefile", "CFLAGS = -O3 -ffast" + "-math\n"),
    ("arithmetic_flags", "Makefile", "CFLAGS = -march=" + "native\n"),
    ("tests_exist", "base/x.h", "int x(void);\n"),
    ("words", "base/x.c", "/* TO" + "DO: more */\n"),
    ("words", "docs/x.md", "see /wor" + "k/notes\n"),
    ("large_files", "x.whl", "PK"),
    ("commands", "deploy/x.sh", "if true\n"),
    ("commands", "tests/x.py", "def f(:\n"),
    ("format", "base/x.c", "int   x ;\n"),
]

GOOD = [
    ("layers", "server/main.c", '#include "base/err.h"\n'),
    ("layers", "runtime/model/x.c", '#include "base/err.h"\n'),
    ("lengths", "base/x.c", MANY.replace("int a, int b, int c, ", "")),
    ("environment", "config/x.c", 'char *p = getenv("HOME");\n'),
    ("environment", "server/x.c", "/* getenv() is for config/ */\n"),
    ("process_exit", "server/main.c", "int main(void)\n{\n    exit(1);\n}\n"),
    ("process_exit", "server/x.c", "void f(void)\n{\n    on_exit(1);\n}\n"),
    ("allocation", "cache/x.c",
     "int pool_new(void)\n{\n    p = malloc(4);\n}\n"),
    ("static_state", "cache/x.c",
     "static const char *const name[] = {0};\nstatic int f(int a);\n"
     "static const struct t rows[] = {\n"),
    ("words", "base/x.c", "/* mkstemp wants XXXXXX */\n"),
]


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A repository of one file; includes find the real headers' names."""
    monkeypatch.setattr(lint, "ROOT", tmp_path)

    def put(name, text):
        for other in ("base/err.h", "base/json_internal.h", "cache/pool.h",
                      "runtime/model/model.h", name):
            path = tmp_path / other
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text if other == name else "")
        return [name]
    return put


@pytest.mark.parametrize("rule, name, text", BAD)
def test_a_fault_is_seen(tree, rule, name, text):
    files = tree(name, text)
    assert list(getattr(lint, rule)(files))


@pytest.mark.parametrize("rule, name, text", GOOD)
def test_what_is_right_passes(tree, rule, name, text):
    files = tree(name, text)
    assert not list(getattr(lint, rule)(files))
