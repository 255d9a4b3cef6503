#!/usr/bin/env python3
"""Whether policies are as good as tests/quality/expected.tsv says.

    tests/quality/quality.py MODEL            measures, one line a verdict
    tests/quality/quality.py --write MODEL    measures, and writes the means
                                              that it found into the file

Half a minute to four minutes of `ebb eval` on a small model: few documents of
512 tokens, the novel for tuning (`make texts USE=dev`), one budget. It says
that nothing has become worse, not what a policy is worth: docs/quality.md.
Run by tests/run.py. Python's standard library only.
"""
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXPECTED = Path(__file__).resolve().with_name("expected.tsv")
FLAGS = ["--split", "dev", "--context", "512", "--docs", "3",
         "--tasks", "A,B2,E1,F", "--budget", "0.25", "--policy",
         "full,no-context,oracle,streamingllm,keydiff,snapkv,dbtrimkv,"
         "dbtrimkv+merge", "--against", "dbtrimkv"]
HIGHER_IS_BETTER = ("agree", "top1", "em", "choice")


def measure(ebb, model, out, limit):
    """The rows of ebb eval; an exception with its words where it fails."""
    for old in (out, Path(f"{out}.part")):
        old.unlink(missing_ok=True)
    r = subprocess.run([ebb, "eval", "--model", model, "--json", out, *FLAGS],
                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                       text=True, timeout=limit)
    if r.returncode != 0:
        raise RuntimeError(r.stderr.strip().splitlines()[-1])
    return [json.loads(line) for line in Path(out).read_text().splitlines()]


def expected():
    """[(task, policy, metric, mean or bound, tolerance)]"""
    lines = [line.split("\t") for line in EXPECTED.read_text().splitlines()
             if line and not line.startswith("#")]
    return [(*line[:3], float(line[3]), float(line[4])) for line in lines[1:]]


def find(rows, task, policy, metric):
    """The row and its figure. `kl_minus_best:hi` is the upper end of the
    interval."""
    name, _, end = metric.partition(":")
    for row in rows:
        if (row["task"], row["policy"], row["metric"]) == (task, policy, name):
            return row, row[end or "mean"]
    return None, None


def verdict(rows, task, policy, metric, want, tolerance):
    """("ok", "better", "worse", "weak" or "missing", sentence). Better gates
    may make a policy better than it was: that is no fault."""
    row, got = find(rows, task, policy, metric)
    what = f"{task} {policy} {metric}"
    if row is None:
        return "missing", f"{what}: not measured"
    if "note" in row:
        return "weak", f"{what}: {row['note']}"
    loss = got - want
    if metric.split("_")[0] in HIGHER_IS_BETTER:
        loss = -loss
    if ":" in metric:  # a bound
        return "worse" if loss > tolerance else "ok", \
            f"{what}: {got:.4f}, must not pass {want:g}"
    kind = "worse" if loss > tolerance else \
        "better" if loss < -tolerance else "ok"
    return kind, f"{what}: {got:.4f}, expected {want:.4f} within {tolerance:g}"


def unequal_bytes(rows):
    """Sentences about policies that kept more or less than others did."""
    by_cell = {}
    for row in rows:
        if 0 < row["budget"] < 1:
            cell = by_cell.setdefault((row["task"], row["budget"]), {})
            cell.setdefault(row["bytes"], row["policy"])
    return [f"{task} at {budget}: different bytes: {cell}"
            for (task, budget), cell in by_cell.items() if len(cell) > 1]


def verdicts(rows):
    """[(kind, sentence)] of all lines of the file, and of equal bytes."""
    out = [verdict(rows, *line) for line in expected()]
    unequal = unequal_bytes(rows)
    return out + ([("worse", s) for s in unequal] or
                  [("ok", "all policies kept the same bytes")])


def write(rows):
    """The file again, with the means that were found; bounds stay."""
    lines = []
    for line in EXPECTED.read_text().splitlines():
        part = line.split("\t")
        if not line.startswith("#") and len(part) == 5 and \
                part[0] != "task" and ":" not in part[2]:
            part[3] = f"{find(rows, *part[:3])[1]:.4f}"
        lines.append("\t".join(part))
    EXPECTED.write_text("\n".join(lines) + "\n")


def main():
    is_write = sys.argv[1:2] == ["--write"]
    out = ROOT / "build" / "quality-short.json"
    rows = measure(ROOT / "build" / "ebb", sys.argv[-1], out, 3600)
    if is_write:
        return write(rows)
    found = verdicts(rows)
    for kind, sentence in found:
        print(f"{kind:<8} {sentence}")
    return sys.exit(any(k in ("worse", "missing") for k, _ in found))


if __name__ == "__main__":
    main()
