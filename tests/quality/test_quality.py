"""The verdicts of the short tier: they fail when quality falls."""
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
import quality  # noqa: E402


def row(task, policy, metric, **more):
    return {"task": task, "policy": policy, "metric": metric, "budget": 0.25,
            "bytes": 1000, "mean": 0, "lo": -1, "hi": 1, **more}


def as_expected():
    """Rows with exactly what the file says."""
    rows = []
    for task, policy, metric, want, _ in quality.expected():
        name, _, end = metric.partition(":")
        rows.append(row(task, policy, name, **{end or "mean": want}))
    return rows


def kinds(rows):
    return [k for k, _ in quality.verdicts(rows)]


def test_what_the_file_says_is_fine():
    assert set(kinds(as_expected())) == {"ok"}
    assert len(quality.expected()) > 20


@pytest.mark.parametrize("i", range(len(quality.expected())))
def test_every_line_fails_when_its_figure_is_worse(i):
    _, _, metric, _, tolerance = quality.expected()[i]
    worse = -1 if metric.startswith("em") else 1
    for factor, kind in ((0.9, "ok"), (1.1, "worse"), (-1.1, "better")):
        rows = as_expected()
        key = metric.partition(":")[2] or "mean"
        by = (tolerance or 1e-3) * worse * factor
        if tolerance == 0 and kind == "ok":
            continue
        rows[i][key] += by
        is_bound = ":" in metric and kind == "better"
        assert kinds(rows)[i] == ("ok" if is_bound else kind)


def test_what_is_not_there_is_a_fault():
    rows = as_expected()
    del rows[3]
    assert kinds(rows)[3] == "missing"
    rows = as_expected()
    rows[3]["note"] = "model too weak"
    assert kinds(rows)[3] == "weak"
    rows = as_expected()
    rows[5]["bytes"] += 1
    assert kinds(rows)[-1] == "worse"


def test_a_run_that_fails_is_told(tmp_path):
    program = tmp_path / "ebb"
    program.write_text("#!/bin/sh\necho no gates here >&2\nexit 2\n")
    program.chmod(0o755)
    with pytest.raises(RuntimeError, match="no gates here"):
        quality.measure(program, "m", tmp_path / "out.json", 10)
