#!/usr/bin/env python3
"""Every test, from packages to black-box checks. What `make test` runs.

    tests/run.py [PART...]      all parts, or those named (--list shows them)

Each part prints what fails and why something is skipped. The last line is
"N passed, N failed, N skipped" over all of them; exit status 1 if any failed.
Python's standard library only: the rest comes with the part `python`.
"""
import concurrent.futures
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
VENV = BUILD / "venv"
ACCEPT = ROOT.parent / "shared" / "accept"
JOBS = len(os.sched_getaffinity(0))
MODELS = ("smollm2-135m", "qwen2.5-coder-0.5b")
# Under the thread sanitizer only what has threads is worth its time.
THREADED = re.compile(r'#include [<"](pthread\.h|base/workers\.h|'
                      r'runtime/engine/engine\.h|microhttpd\.h|'
                      r'server/server\.h)[>"]')
PARTS = {}


def part(function):
    PARTS[function.__name__] = function
    return function


class Tally:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.faults = []

    def ok(self, n=1):
        self.passed += n

    def fail(self, what, n=1):
        self.failed += n
        self.faults.append(what)
        say(f"FAILED  {what}")

    def skip(self, what, n=1):
        self.skipped += n
        say(f"SKIPPED {what}")


def say(text=""):
    print(text, flush=True)


def environment(**more):
    """Without what an outer make would tell an inner one."""
    env = {k: v for k, v in os.environ.items()
           if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "BUILD", "SAN",
                        "CFLAGS", "CC") and not k.startswith("EBB_")}
    return {**env, "PYTHONDONTWRITEBYTECODE": "1", **more}


def call(argv, limit, capture=True, env=None):
    """(exit status, output); the whole process group ends at the limit."""
    proc = subprocess.Popen(
        [str(a) for a in argv], cwd=ROOT, env=env or environment(), text=True,
        errors="replace", start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if capture else None,
        stderr=subprocess.STDOUT)
    try:
        out, _ = proc.communicate(timeout=limit)
        return proc.returncode, out or ""
    except subprocess.TimeoutExpired:
        os.killpg(proc.pid, signal.SIGKILL)
        out, _ = proc.communicate()
        return -1, (out or "") + f"\nended after {limit} s\n"
    except BaseException:
        os.killpg(proc.pid, signal.SIGKILL)
        raise


def tail(text, lines=60):
    return "\n".join(text.rstrip().splitlines()[-lines:])


def step(tally, what, argv, limit=1800, capture=True):
    """One command that counts as one test."""
    status, out = call(argv, limit, capture)
    if status == 0:
        tally.ok()
        return True
    say(tail(out))
    tally.fail(what)
    return False


# ------------------------------------------------------------------- parts

@part
def packages(tally):
    """Debian packages that are missing"""
    step(tally, "packages: deploy/setup.sh test", ["deploy/setup.sh", "test"],
         capture=False)


@part
def models(tally):
    """the two models, fetched and checked"""
    for name in MODELS:
        step(tally, f"models: {name}", [sys.executable,
             "deploy/fetch_model.py", name], limit=3600, capture=False)


@part
def python(tally):
    """the tests' own virtual environment"""
    wanted = ROOT / "tests" / "requirements.txt"
    digest = hashlib.sha256(wanted.read_bytes()).hexdigest()
    stamp = VENV / "requirements.sha256"
    if stamp.is_file() and stamp.read_text() == digest:
        return tally.ok()
    interpreter = "/usr/bin/python3" if Path("/usr/bin/python3").exists() \
        else sys.executable
    if not step(tally, "python: virtual environment",
                [interpreter, "-m", "venv", "--clear", VENV]):
        return None
    if step(tally, "python: tests/requirements.txt (is the network there?)",
            [VENV / "bin" / "pip", "install", "--no-input", "-q",
             "--disable-pip-version-check", "-r", wanted]):
        stamp.write_text(digest)
    return None


@part
def build(tally):
    """the program and its unit tests with gcc"""
    step(tally, "build with gcc", ["make", f"-j{JOBS}", "CC=gcc", "all"])
    step(tally, "build of the unit tests with gcc",
         ["make", f"-j{JOBS}", "-k", "CC=gcc", "unit-build",
          "build/tools/put_options"])


@part
def clang(tally):
    """the same sources with clang, for its warnings"""
    step(tally, "build with clang",
         ["make", f"-j{JOBS}", "CC=clang", "BUILD=build/clang", "CFLAGS=-O1",
          "build/clang/ebb"])
    for f in sorted((ROOT / "tests" / "fuzz").glob("fuzz_*.c")):
        step(tally, f"clang reads {f.name}",
             ["clang", "-std=c11", "-D_GNU_SOURCE", "-I.", "-Wall", "-Wextra",
              "-Werror", "-fsyntax-only", f])


RESULT = re.compile(r"^\[  (PASSED|FAILED|SKIPPED) *\] (\d+) test", re.M)
SKIP = re.compile(r"^\[  SKIPPED \] (\w+)$", re.M)


def run_cmocka(program, limit):
    """(passed, failed, skipped, output) of one test program."""
    status, out = call([program], limit)
    if "unexpected memory mapping" in out:
        # The thread sanitizer of gcc 12 needs less address randomisation
        # than some kernels use.
        status, out = call(["setarch", "-R", program], limit)
    counts = {"PASSED": 0, "FAILED": 0, "SKIPPED": 0}
    for verdict, n in RESULT.findall(out):
        counts[verdict] += int(n)
    silent = sum(counts.values()) == 0
    if (status != 0 and counts["FAILED"] == 0) or silent:
        counts["FAILED"] += 1
        out += f"\nexit status {status}\n"
    return counts["PASSED"], counts["FAILED"], counts["SKIPPED"], out


def run_units(tally, folder, names, limit):
    """All test programs, a few at a time."""
    def one(name):
        path = ROOT / folder / "tests" / name
        if not path.is_file():
            return name, 0, 1, 0, "it was not built", 0
        start = time.monotonic()
        return name, *run_cmocka(path, limit), time.monotonic() - start
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        for name, passed, failed, skipped, out, took in pool.map(one, names):
            say(f"{'FAIL' if failed else 'ok  '} {folder}/tests/{name} "
                f"({passed} passed, {took:.1f} s)")
            tally.ok(passed)
            if failed:
                say(tail(out, 100))
                tally.fail(f"{folder}/tests/{name}", failed)
            if skipped:
                # The test says why in a line of its own.
                names_of = ", ".join(SKIP.findall(out)) or "some"
                why = [x for x in out.splitlines() if "skip" in x.lower() and
                       not x.startswith("[")]
                tally.skip(f"{folder}/tests/{name}: {names_of}"
                           f"{': ' + '; '.join(why) if why else ''}", skipped)


def with_helpers(path):
    """The text of a test and of the test headers that it includes."""
    text = path.read_text()
    for name in re.findall(r'#include "([^"]+)"', text):
        for helper in (path.parent / name, ROOT / name):
            if helper.is_file() and "tests" in helper.parts:
                text += helper.read_text()
    return text


def unit_names(only=None, sanitized=False):
    """Tests of whole real models would take an hour under a sanitizer; their
    code runs there on tiny models."""
    root = ROOT / "tests" / "unit"
    return [str(p.relative_to(root).with_suffix(""))
            for p in sorted(root.rglob("test_*.c"))
            if (only is None or only.search(with_helpers(p))) and
            not (sanitized and p.name.startswith("test_real_"))]


@part
def unit(tally):
    """unit tests"""
    # The long ones first, or one of them would run alone at the end.
    names = sorted(unit_names(), key=lambda n: "/test_real_" not in n)
    run_units(tally, "build", names, 1500)


def build_san(tally, san, folder, names):
    targets = [f"{folder}/tests/{n}" for n in names]
    step(tally, f"build with -fsanitize={san}",
         ["make", f"-j{JOBS}", "-k", "CC=gcc", f"SAN={san}", *targets])


@part
def asan(tally):
    """unit tests with the address and undefined-behaviour sanitizers"""
    names = unit_names(sanitized=True)
    build_san(tally, "address,undefined", "build/asan", names)
    run_units(tally, "build/asan", names, 1200)


@part
def tsan(tally):
    """unit tests of what has threads, with the thread sanitizer"""
    names = unit_names(THREADED, sanitized=True)
    build_san(tally, "thread", "build/tsan", names)
    run_units(tally, "build/tsan", names, 1200)


@part
def lint(tally):
    """the rules of the house"""
    verdicts = BUILD / "lint.json"
    verdicts.unlink(missing_ok=True)
    _, out = call([sys.executable, "tests/lint/lint.py", "--json", verdicts],
                  1200)
    say(out.rstrip())
    if not verdicts.is_file():
        return tally.fail("lint ended early")
    for name, places in json.loads(verdicts.read_text()).items():
        if places:
            tally.fail(f"lint: {name}")
        else:
            tally.ok()
    return None


def run_pytest(tally, name, args, limit, env=None):
    """pytest with its own output; counted from its XML report."""
    report = BUILD / f"pytest-{name}.xml"
    report.unlink(missing_ok=True)
    python = VENV / "bin" / "python"
    if not python.exists():
        return tally.fail(f"{name}: no virtual environment (part python)")
    status, _ = call([python, "-m", "pytest", "-p", "no:cacheprovider", "-q",
                      "-ra", f"--junitxml={report}", "--timeout=400", *args],
                     limit, capture=False, env=environment(**(env or {})))
    if not report.is_file():
        return tally.fail(f"{name}: pytest ended with status {status} and no "
                          f"report (limit {limit} s)")
    expected = failed = 0
    for case in ET.parse(report).iter("testcase"):
        label = f"{name}: {case.get('classname')}::{case.get('name')}"
        bad = case.find("failure") is not None or \
            case.find("error") is not None
        skip = case.find("skipped")
        if bad:
            failed += 1
            tally.fail(label)
        elif skip is None:
            tally.ok()
        elif "xfail" in (skip.get("type") or ""):
            expected += 1
            tally.skipped += 1
        else:
            tally.skip(f"{label}: {skip.get('message')}")
    if expected:
        say(f"SKIPPED {name}: {expected} checks of what is not built yet "
            "failed as tests/accept_exempt.txt says")
    if status not in (0, 5) and failed == 0:
        tally.fail(f"{name}: pytest ended with status {status}")
    return None


@part
def e2e(tally):
    """end-to-end tests of the program over HTTP, and of the tools"""
    run_pytest(tally, "tests", ["tests"], 1500)


@part
def quality(tally):
    """what policies cost in quality, against tests/quality/expected.tsv"""
    sys.path.insert(0, str(ROOT / "tests" / "quality"))
    import quality as tier
    status, out = call([sys.executable, "deploy/fetch_texts.py", "dev"], 600)
    if status != 0:
        return tally.skip(f"quality: no texts: {tail(out, 1)}")
    status, out = call([sys.executable, "deploy/fetch_model.py", MODELS[0]],
                       3600)
    if status != 0:
        return tally.fail("quality: no model")
    try:
        rows = tier.measure(BUILD / "ebb", out.strip().splitlines()[-1],
                            BUILD / "quality-short.json", 1500)
    except (RuntimeError, subprocess.TimeoutExpired) as e:
        return tally.fail(f"quality: {e}")
    for kind, sentence in tier.verdicts(rows):
        if kind in ("worse", "missing"):
            tally.fail(f"quality: {sentence}")
        elif kind == "weak":
            tally.skip(f"quality: {sentence}")
        else:
            tally.ok()
            say(f"{kind:<7} {sentence}")
    return None


def run_accept(tally, folder, limit):
    """One folder of the black-box checks; they stand outside this tree."""
    if not (ACCEPT / folder).is_dir():
        return tally.skip(f"{folder}: no folder ../shared/accept/{folder} "
                          "here")
    status, model = call([sys.executable, "deploy/fetch_model.py", MODELS[0]],
                         3600)
    if status != 0:
        return tally.fail(f"{folder}: no model")
    model = model.strip().splitlines()[-1]
    return run_pytest(
        tally, folder,
        ["-p", "accept_exempt", ACCEPT / folder,
         f"--server={BUILD / 'ebb'}", f"--model={model}"], limit,
        {"PYTHONPATH": str(ROOT / "tests")})


@part
def wire(tally):
    """black-box checks of the protocol, where ../shared/accept exists"""
    run_accept(tally, "wire", 1500)


@part
def memory(tally):
    """black-box checks of the one budget, from the same place"""
    run_accept(tally, "memory", 1500)


# -------------------------------------------------------------------- main

def main():
    chosen = sys.argv[1:] or list(PARTS)
    if chosen == ["--list"]:
        for name, function in PARTS.items():
            print(f"{name:<9} {function.__doc__}")
        return
    unknown = [c for c in chosen if c not in PARTS]
    if unknown:
        sys.exit(f"no part {unknown[0]}; there are: {', '.join(PARTS)}")
    BUILD.mkdir(exist_ok=True)
    total, times = Tally(), []
    for name in chosen:
        say(f"\n== {name}: {PARTS[name].__doc__}")
        start = time.monotonic()
        PARTS[name](total)
        times.append(f"{name} {time.monotonic() - start:.0f} s")
    say("\n== result")
    say("time: " + ", ".join(times))
    for fault in total.faults:
        say(f"FAILED  {fault}")
    line = (f"{total.passed} passed, {total.failed} failed, "
            f"{total.skipped} skipped")
    (BUILD / "result").write_text(line + "\n")
    say(line)
    sys.exit(total.failed > 0)


if __name__ == "__main__":
    main()
