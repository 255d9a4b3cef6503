"""tests/run.py and tests/accept_exempt.py: a fault must not pass as success."""
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
SPEC = importlib.util.spec_from_file_location("run", TESTS / "run.py")
run = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(run)


@pytest.fixture
def program(tmp_path):
    def make(text):
        path = tmp_path / "program"
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)
        return path
    return make


@pytest.mark.parametrize("text, counts", [
    ("echo '[  PASSED  ] 3 test(s).'", (3, 0, 0)),
    ("echo '[  PASSED  ] 3 test(s).'; echo '[  PASSED  ] 2 test(s).'",
     (5, 0, 0)),
    ("echo '[  PASSED  ] 2 test(s).'; echo '[  FAILED  ] 1 test(s), listed';"
     "exit 1", (2, 1, 0)),
    ("echo '[  PASSED  ] 1 test(s).'; echo '[  SKIPPED ] 2 test(s), listed'",
     (1, 0, 2)),
    ("echo '[  PASSED  ] 1 test(s).'; exit 3", (1, 1, 0)),
    ("kill -SEGV $$", (0, 1, 0)),
    ("true", (0, 1, 0)),
    ("sleep 30", (0, 1, 0))])
def test_the_runner_counts_what_a_program_says(program, text, counts):
    assert run.run_cmocka(program(text), 2)[:3] == counts


CHECKS = """
import pytest
def test_fails(): assert False
def test_passes(): pass
@pytest.fixture
def broken(): raise RuntimeError
@pytest.mark.parametrize("n", [1, 2])
def test_both(broken, n): pass
"""


@pytest.fixture
def suite(tmp_path):
    """Runs pytest on CHECKS with this exempt list; its exit status and
    output."""
    def go(listed):
        shutil.copy(TESTS / "accept_exempt.py", tmp_path)
        (tmp_path / "accept_exempt.txt").write_text(listed)
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        (tmp_path / "wire").mkdir()
        (tmp_path / "wire" / "test_x.py").write_text(CHECKS)
        out = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p",
             "accept_exempt", "wire"], cwd=tmp_path, text=True,
            capture_output=True,
            env={**os.environ, "PYTHONPATH": str(tmp_path)})
        return out.returncode, out.stdout + out.stderr
    return go


FAILS = "wire/test_x.py::test_fails\tnot there\n"
BOTH = "wire/test_x.py::test_both\tnot there\n"


def test_listed_failures_are_expected(suite):
    status, out = suite("# comment\n" + FAILS + BOTH)
    assert status == 0 and "1 passed, 3 xfailed" in out, out


def test_an_unlisted_failure_fails(suite):
    status, out = suite(BOTH)
    assert status == 1 and "1 failed" in out, out


def test_a_listed_check_that_passes_fails_the_run(suite):
    status, out = suite(FAILS + BOTH + "wire/test_x.py::test_passes\tno\n")
    assert status == 1 and "XPASS(strict)" in out, out


def test_a_line_that_names_no_check_fails_the_run(suite):
    status, out = suite(FAILS + BOTH + "wire/test_x.py::test_gone\tno\n")
    assert status == 1 and "no check is called" in out, out


@pytest.mark.parametrize("line", ["wire/test_x.py::test_fails\n",
                                  FAILS + FAILS])
def test_a_line_without_reason_or_twice_is_refused(suite, line):
    status, out = suite(line)
    assert status not in (0, 1), out
