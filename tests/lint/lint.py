#!/usr/bin/env python3
"""The rules of the house that a machine can check.

    tests/lint/lint.py [RULE...]       all rules, or those named
    tests/lint/lint.py --write-readme  puts the option table into README.md

One line a rule: "ok" or "FAIL" with each place. Exit status 1 if any fails.
--json FILE writes the verdicts for tests/run.py.
"""
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RULES = {}

# Which folders a file may include from (architecture.md); its own always.
LAYERS = {
    "base": [],
    "config": ["base"],
    "cache": ["base"],
    "runtime/kernels": ["base"],
    "gates": ["base", "runtime/kernels"],
    "gates/train": ["base", "gates", "runtime/kernels", "runtime/model",
                    "runtime/gguf", "runtime/text", "cache"],
    "merge": ["base", "runtime/kernels"],
    "runtime/gguf": ["base"],
    "runtime/text": ["base", "runtime/gguf"],
    "runtime/model": ["base", "cache", "gates", "runtime/kernels",
                      "runtime/gguf"],
    "runtime/cuda": ["base", "cache", "runtime/kernels"],
    "runtime/engine": ["base", "cache", "gates", "merge", "runtime/kernels",
                       "runtime/gguf", "runtime/text", "runtime/model"],
    "server": ["base", "config", "runtime/engine"],
    # The commands besides the server: programs of their own in main's place.
    "server/command": ["base", "config", "cache", "gates", "gates/train",
                       "runtime/kernels", "runtime/gguf", "runtime/text",
                       "runtime/model", "runtime/engine"],
}
SOURCE_DIRS = ("base", "config", "cache", "gates", "merge", "runtime",
               "server")
# main wires the modules together, so it may see all of them.
MAIN = "server/main.c"


def rule(function):
    RULES[function.__name__.replace("_", "-")] = function
    return function


def tracked():
    """Files of the repository, new ones too unless ignored."""
    out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"],
                         cwd=ROOT, capture_output=True, text=True)
    if out.returncode != 0:  # an unpacked archive
        skip = {"build", ".git", "__pycache__"}
        return sorted(str(p.relative_to(ROOT)) for p in ROOT.rglob("*")
                      if p.is_file() and not skip & set(p.parts))
    return sorted(f for f in out.stdout.splitlines() if (ROOT / f).is_file())


def read(name):
    return (ROOT / name).read_text(errors="replace")


def sources(files, *suffixes):
    return [f for f in files if f.split("/")[0] in SOURCE_DIRS and
            f.endswith(suffixes or (".c", ".h"))]


def c_files(files):
    return [f for f in files if f.endswith((".c", ".h", ".cu"))]


def blanked(text):
    """The code with comments, strings and characters blanked, lines kept."""
    def blank(m):
        s = m.group(0)
        keep = "\n" * s.count("\n")
        return keep if s.startswith("/") else s[0] + keep + s[0]
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'
                  r"'(?:\\.|[^'\\\n])+'", blank, text, flags=re.S)


def layer_of(name):
    best = ""
    for layer in LAYERS:
        if name.startswith(layer + "/") and len(layer) > len(best):
            best = layer
    return best


def functions(name):
    """(name, first line, last line, parameters, their text) of each function:
    the house format puts its braces alone in column 0."""
    lines = blanked(read(name)).split("\n")
    start = None
    for i, line in enumerate(lines):
        if line == "{":
            start = i
        elif line == "}" and start is not None:
            head = start
            while head > 0 and lines[head - 1] and \
                    lines[head - 1][0] not in "#};/":
                head -= 1
            text = " ".join(lines[head:start])
            found = re.search(r"(\w+)\s*\((.*)\)[^()]*$", text, re.S)
            if found:
                inner, depth, params = found.group(2), 0, 1
                for c in inner:
                    depth += (c == "(") - (c == ")")
                    params += c == "," and depth == 0
                params = 0 if inner.strip() in ("", "void") else params
                yield found.group(1), head + 1, i + 1, params, inner
            start = None


# ------------------------------------------------------------------- rules

@rule
def layers(files):
    """What a folder includes is what architecture.md allows."""
    for f in sources(files):
        mine = layer_of(f)
        for n, line in enumerate(read(f).split("\n"), 1):
            found = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if not found:
                continue
            path = found.group(1)
            if not (ROOT / path).is_file():
                yield f"{f}:{n}: \"{path}\" is no path from the root"
            elif f != MAIN and layer_of(path) != mine and \
                    layer_of(path) not in LAYERS[mine]:
                yield f"{f}:{n}: {mine} may not include {path}"
            elif path.endswith("_internal.h") and \
                    Path(path).parent != Path(f).parent:
                yield f"{f}:{n}: {path} is internal to its folder"


@rule
def lengths(files):
    """Files up to 1,000 lines, functions up to 100, at most 6 parameters."""
    # Inner functions of kernels dissolve in their loops, and the parameters
    # of a library's callback are the library's choice.
    for f in c_files(files):
        text = read(f)
        n = text.count("\n")
        if n > 1000 and "generated" not in text[:400].lower():
            yield f"{f}: {n} lines"
        for name, first, last, params, inner in functions(f):
            if last - first + 1 > 100:
                yield f"{f}:{first}: {name}() has {last - first + 1} lines"
            free = f.startswith("runtime/kernels/") or \
                "struct MHD_Connection" in inner
            if params > 6 and not free and f in sources([f]):
                yield f"{f}:{first}: {name}() has {params} parameters"


def calls(files, pattern):
    for f in files:
        for n, line in enumerate(blanked(read(f)).split("\n"), 1):
            found = re.search(r"(?<![\w.>])(" + pattern + r")\s*\(", line)
            if found:
                yield f, n, found.group(1)


@rule
def environment(files):
    """Only config/ looks at the environment."""
    for f in sources(files):
        if f.startswith("config/"):
            continue
        for n, line in enumerate(blanked(read(f)).split("\n"), 1):
            if re.search(r"\b(secure_)?getenv\b|\bsetenv\b|\benviron\b", line):
                yield f"{f}:{n}: {line.strip()}"


@rule
def process_exit(files):
    """Only main ends the process."""
    where = [f for f in sources(files, ".c") if f != MAIN]
    for f, n, name in calls(where, "exit|_exit|quick_exit|abort"):
        yield f"{f}:{n}: {name}()"


@rule
def allocation(files):
    """Outside base/ and config/, memory comes from functions that say so by
    their names, so that none hides in a loop."""
    verbs = re.compile(r"new|load|open|init|create|start|grow|reserve|alloc|"
                       r"dup|copy|make|build|parse|read|add|append|take|"
                       r"compile|prepare|submit|set|put|push|fill|run|main|"
                       r"clone|begin|shrink|hand_over|from|collect|split|merge|encode|decode|render|expand")
    for f in sources(files, ".c"):
        if f.startswith(("base/", "config/")):
            continue
        spans = list(functions(f))
        for _, n, name in calls([f], "malloc|calloc|realloc|aligned_alloc|"
                                "posix_memalign|strdup|strndup|reallocarray"):
            inside = [s for s in spans if s[1] <= n <= s[2]]
            if not inside or not verbs.search(inside[0][0]):
                yield f"{f}:{n}: {name}() in {inside[0][0] if inside else '?'}()"


@rule
def unsafe_calls(files):
    """No functions that write without a bound, no alloca."""
    for f, n, name in calls(c_files(files), "gets|strcpy|strcat|sprintf|"
                            "vsprintf|alloca|tmpnam|mktemp"):
        yield f"{f}:{n}: {name}()"


@rule
def static_state(files):
    """No static mutable data outside main.c and base/log.c."""
    allowed = {MAIN, "base/log.c", "base/malloc_conf.c"}
    for f in sources(files, ".c"):
        if f in allowed:
            continue
        for n, line in enumerate(blanked(read(f)).split("\n"), 1):
            if not re.match(r"\s*(static|_Thread_local)\b", line):
                continue
            head = re.split(r"[=;{]", line)[0]
            is_function = re.search(r"\w\s*\(", head) and \
                "(*" not in head.replace(" ", "")
            # A pointer must be const itself: "const char *const name[]".
            last = head.split("*")[-1]
            if is_function or re.search(r"\bconst\b", last) or \
                    not re.search(r"[=;{]", line):
                continue
            yield f"{f}:{n}: {line.strip()}"


@rule
def arithmetic_flags(files):
    """No flag that rounds differently or ties the binary to one machine."""
    words = ["-ffast" + "-math", "-Of" + "ast", "-march=" + "native",
             "-mtune=" + "native", "--use_fast" + "_math",
             "-funsafe-math" + "-optimizations", "-fassociative" + "-math"]
    for f in files:
        if not f.endswith((".c", ".h", ".cu", ".mk", ".sh", ".py")) and \
                Path(f).name not in ("Makefile", "Dockerfile"):
            continue
        for n, line in enumerate(read(f).split("\n"), 1):
            for w in words:
                if w in line and "never" not in line:
                    yield f"{f}:{n}: {w}"


ELSEWHERE = "tests/lint/tested_elsewhere.txt"


def tested_elsewhere():
    """{header: test that reaches its module through another header}."""
    if not (ROOT / ELSEWHERE).is_file():
        return {}
    lines = [x for x in read(ELSEWHERE).splitlines()
             if x and not x.startswith("#")]
    return dict(line.split("\t", 1) for line in lines)


@rule
def tests_exist(files):
    """Every module (a header) is included by a unit test of its folder, or
    tests/lint/tested_elsewhere.txt names the test that reaches it."""
    tests, elsewhere = {}, tested_elsewhere()
    for f in files:
        if f.startswith("tests/unit/") and f.endswith((".c", ".h")):
            for path in re.findall(r'#include "([^"]+)"', read(f)):
                tests.setdefault(path, []).append(f)
    for f in sources(files, ".h"):
        folder = "tests/unit/" + str(Path(f).parent)
        own = any(t.startswith(folder) for t in tests.get(f, []))
        if f in elsewhere and own:
            yield f"{ELSEWHERE}: {f} has a test of its own now"
        elif not own and f not in elsewhere and \
                not f.endswith("_internal.h"):
            yield f"{f}: no test in {folder}/ includes it"
    for f, test in elsewhere.items():
        if not (ROOT / f).is_file() or not (ROOT / test).is_file():
            yield f"{ELSEWHERE}: {f} or {test} does not exist"


@rule
def words(files):
    """No open ends, and nothing that belongs to one machine."""
    code = [r"\bTODO\b", r"\bFIXME\b", r"(?-i:\bXXX\b)", r"\bnot impl" + r"emented\b",
            r"\bplace" + r"holder\b", r"\bstu" + r"b\b"]
    everywhere = [r"(?<![\w.])/wor" + r"k/", r"(?<![\w.])/ro" + r"ot/",
                  r"/tmp/bash_" + r"jobs", r"\bpy" + r"pi\.", r"pythonho" +
                  r"sted\.", r"\bdeb\.deb" + r"ian", r"\bsub-?ag" + r"ent",
                  r"\bco-auth" + r"ored", r"\bcla" + r"ude\b"]
    for f in files:
        if f.endswith((".gguf", ".bin", ".safetensors", ".npz", ".png")):
            continue
        if f.startswith(("tests/golden/", "tests/fuzz/corpus/")):
            continue
        pattern = everywhere + (code if f in c_files(files) else [])
        for n, line in enumerate(read(f).split("\n"), 1):
            found = re.search("|".join(pattern), line, re.I)
            if found:
                yield f"{f}:{n}: '{found.group(0)}'"


@rule
def large_files(files):
    """Models, wheels and other binaries do not belong into the history."""
    for f in files:
        size = (ROOT / f).stat().st_size
        if f.endswith((".whl", ".so", ".o", ".a", ".zip", ".gz")) or \
                size > 8 << 20:
            yield f"{f}: {size} bytes"


@rule
def commands(files):
    """Scripts that the Makefile calls are executable and parse."""
    for f in files:
        if f.endswith(".sh") or f == ".ci/run":
            if not os.access(ROOT / f, os.X_OK):
                yield f"{f}: not executable"
            run = subprocess.run(["sh", "-n", str(ROOT / f)],
                                 capture_output=True, text=True)
            if run.returncode:
                yield f"{f}: {run.stderr.strip()}"
        if f.endswith(".py"):
            try:
                compile(read(f), f, "exec")
            except SyntaxError as e:
                yield f"{f}:{e.lineno}: {e.msg}"


def generated(what):
    tool = ROOT / "build" / "tools" / "put_options"
    return subprocess.run([tool, what], capture_output=True, text=True,
                          check=True).stdout


README_TABLE = re.compile(r"(<!-- options: generated by make docs -->\n)"
                          r"(.*?)(<!-- end of options -->)", re.S)


def readme_table():
    """Option and default only; docs/options.md says what each does."""
    rows = []
    for line in generated("page").split("\n"):
        if line.startswith("|"):
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            first = re.split(r"(?<=\.) ", cells[2].strip())[0]
            rows.append(f"|{cells[0]}|{cells[1]}| {first} |")
    return "\n".join(rows).replace("| --- |", "|---|") + "\n"


@rule
def fresh(files):
    """What is generated from the option table is up to date: `make docs`."""
    wanted = {"docs/options.md": generated("page"),
              "deploy/ebb.conf": generated("example")}
    for name, text in wanted.items():
        if not (ROOT / name).is_file() or read(name) != text:
            yield f"{name} is stale: run make docs"
    found = README_TABLE.search(read("README.md"))
    if not found or found.group(2) != readme_table():
        yield "README.md: the option table is stale: run make docs"


def write_readme():
    text = README_TABLE.sub(lambda m: m.group(1) + readme_table() +
                            m.group(3), read("README.md"))
    (ROOT / "README.md").write_text(text)


def in_parallel(command, names):
    """Runs command + [name] for each; yields (name, output) of failures."""
    def one(name):
        run = subprocess.run([*command(name), name], cwd=ROOT,
                             capture_output=True, text=True)
        return name, run.returncode, run.stdout + run.stderr
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, status, out in pool.map(one, names):
            if status != 0:
                yield name, out


@rule
def format(files):
    """clang-format would change nothing."""
    for name, out in in_parallel(
            lambda _: ["clang-format", "--dry-run", "-Werror"],
            [f for f in c_files(files) if not f.endswith(".cu")]):
        yield f"{name}: {out.strip().splitlines()[0] if out else 'unformatted'}"


@rule
def tidy(files):
    """clang-tidy with the checks of .clang-tidy."""
    def command(name):
        isa = []
        if "avx2" in name:
            isa = ["--extra-arg=-mavx2", "--extra-arg=-mfma",
                   "--extra-arg=-mf16c"]
        elif "avx512" in name:
            isa = [f"--extra-arg=-m{x}" for x in
                   ("avx512f", "avx512bw", "avx512vl", "avx512dq",
                    "avx512vnni", "fma", "f16c")]
        return ["clang-tidy", "--quiet", "--extra-arg=-std=c11",
                "--extra-arg=-D_GNU_SOURCE", "--extra-arg=-I.", *isa]
    for name, out in in_parallel(command, sources(files, ".c")):
        for line in out.splitlines():
            if ": error:" in line or ": warning:" in line:
                yield line.replace(str(ROOT) + "/", "")


def main():
    args = sys.argv[1:]
    if args == ["--write-readme"]:
        return write_readme()
    verdicts_file = None
    if args[:1] == ["--json"]:
        verdicts_file, args = args[1], args[2:]
    files, verdicts = tracked(), {}
    for name in args or RULES:
        if name not in RULES:
            sys.exit(f"lint: no rule '{name}'; there are: {', '.join(RULES)}")
        start = time.monotonic()
        places = list(RULES[name](files))
        took = time.monotonic() - start
        verdicts[name] = places
        about = " ".join(RULES[name].__doc__.split())
        print(f"{'FAIL' if places else 'ok  '} {name:<17} {about}" +
              (f" ({took:.0f} s)" if took > 5 else ""))
        for place in places:
            print(f"       {place}")
    sys.stdout.flush()
    if verdicts_file:
        Path(verdicts_file).write_text(json.dumps(verdicts))
    sys.exit(any(verdicts.values()))


if __name__ == "__main__":
    main()
