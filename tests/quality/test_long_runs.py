"""bench/quality.py names policies, fates and tasks that `ebb eval` has."""
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location(
    "long_runs", ROOT / "bench" / "quality.py")
long_runs = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(long_runs)


def lines(*argv):
    return long_runs.commands(long_runs.arguments(
        [*argv, "--model", "no-model.gguf", "--second", "other.gguf"]))


@pytest.mark.parametrize("stage, n", [("screening", 2), ("final", 6),
                                      ("rest", 1), ("ablation", 1),
                                      ("retention", 5)])
def test_every_name_is_known(ebb, stage, n):
    """Names are checked before the model is opened."""
    found = lines(stage)
    assert len(found) == n
    for line in found:
        r = subprocess.run([ebb, *line[1:]], capture_output=True, text=True,
                           timeout=60)
        assert r.returncode == 1 and "no-model.gguf" in r.stderr or \
            "other.gguf" in r.stderr, r.stderr


def test_one_model_and_other_documents():
    found = lines("retention", "--only", "second", "--seed", "2")
    assert len(found) == 3
    for line in found:
        assert "other.gguf" in line and line[line.index("--seed") + 1] == "2"
        assert line[line.index("--html") + 1].endswith("-seed2.html")
    assert len(lines("retention", "--only", "first")) == 2
    assert not lines("screening", "--only", "second")
    assert all("--seed" not in line for line in lines("retention"))


def test_cells_are_kept_and_taken_up_again(tmp_path, monkeypatch, capsys):
    kept = tmp_path / "results" / "cells.jsonl.xz"
    monkeypatch.setattr(long_runs, "KEPT", kept)
    part = tmp_path / "one" / "quality.json.part"
    long_runs.begin(part, False)
    assert not part.exists()
    part.write_text('{"b":1}\n{"a":1}\n{"b":1}\n')
    long_runs.main(["--keep", "--out", str(part.parent)])
    assert "2 cells" in capsys.readouterr().out
    other = tmp_path / "two" / "quality.json.part"
    long_runs.begin(other, True)
    assert not other.exists()
    long_runs.begin(other, False)
    assert other.read_text() == '{"a":1}\n{"b":1}\n'
    # What is being measured is not thrown away for what was kept.
    other.write_text("mine\n")
    long_runs.begin(other, False)
    assert other.read_text() == "mine\n"


def test_nothing_measured_is_nothing_to_keep(tmp_path):
    with pytest.raises(SystemExit) as e:
        long_runs.keep(tmp_path / "quality.json.part")
    assert "nothing was measured" in str(e.value.code)


@pytest.mark.parametrize("argv, said", [
    ([], "name a stage"), (["nonsense"], "'nonsense' is none of screening")])
def test_a_wrong_stage_is_an_error(argv, said, capsys):
    with pytest.raises(SystemExit) as e:
        long_runs.arguments(argv)
    assert e.value.code == 2 and said in capsys.readouterr().err


def test_stages_cover_what_there_is(ebb):
    names = lines("screening")[0]
    policies = names[names.index("--policy") + 1].split(",")
    r = subprocess.run([ebb, "eval", "--model", "m", "--policy", "nobody"],
                       capture_output=True, text=True, timeout=60)
    known = r.stderr.split("all: ")[1].split(")")[0].split(", ")
    assert set(known) == {p for p in policies if "+" not in p}
    r = subprocess.run([ebb, "eval", "--model", "m", "--policy",
                        "keydiff+nobody"], capture_output=True, text=True,
                       timeout=60)
    fates = r.stderr.split("all: ")[1].split(")")[0].split(", ")
    assert set(fates) - {"drop", "selkv"} == \
        {p.split("+")[1] for p in policies if "+" in p}
    r = subprocess.run([ebb, "eval", "--help"], capture_output=True, text=True,
                       timeout=60)
    tasks = {t for stage in ("screening", "final", "rest")
             for line in lines(stage)
             for t in line[line.index("--tasks") + 1].split(",")}
    assert tasks == set("A A2 B1 B2 C D E1 E2 E3 F G I".split())
    assert all(f"{t} (" in " ".join(r.stdout.split()) for t in tasks)


def row(policy, budget, metric, mean, **more):
    return {"model": "m", "context": 1024, "mode": "agnostic", "task": "B2",
            "policy": policy, "metric": metric, "budget": budget,
            "mean": mean, "lo": mean, "hi": mean, "n": 40,
            "bytes": budget * 1024000, "split": "test", **more}


def sentences(said):
    return [line for line in said.splitlines() if line.startswith("- ")]


def merged(metric, mean, **more):
    """As cells_file.c writes it: what merging did is in every row."""
    return row("a+merge", .25, metric, mean, routed=.12, mean_gate=.3,
               log_ratio=2, **more)


ALL = {"task": "all", "tasks": "A,B2", "n": 80}
ROWS = [
    row("full", 1, "em", .8), row("full", 1, "kl", 0),
    row("no-context", 0, "em", 0), row("no-context", 0, "kl", 3),
    row("a", .25, "em", .6), row("a", .25, "kl", .2),
    row("a", .25, "kl", .2, **ALL),
    row("a", .25, "kl_minus_best", -.3, against="b", **ALL),
    row("a", .25, "em_minus_best", .2, against="b"),
    row("b", .25, "em", .4), row("b", .25, "kl", .5),
    row("b", .25, "kl", .5, **ALL),
    merged("em", .7), merged("kl", .1),
    merged("em_minus_drop", .1, lo=-.05, hi=.25, against="a"),
    row("a", .25, "em", .99, split="dev"),
]


def table_of(tmp_path, *argv, rows=None):
    path = tmp_path / "rows.json"
    path.write_text("\n".join(json.dumps(r) for r in rows or ROWS))
    return subprocess.run(
        [sys.executable, ROOT / "bench" / "quality_table.py", path, *argv],
        capture_output=True, text=True)


def test_rows_become_a_table_and_sentences(tmp_path):
    said = table_of(tmp_path, "--of", "a", "--metrics", "kl,em").stdout
    assert "### m, 1024 tokens, agnostic, 40 documents a task, test" in said
    assert "| policy | budget | KiB a prompt | B2: KL | B2: em |" in said
    assert "| full | all | 1000 | 0.000 | 0.800 |" in said
    # The star of em has its interval; the divergence of this task has none.
    assert "| a | 25% | 250 | **0.200** | **0.600**\\* |" in said
    # A fate keeps its policy's entries: it takes no other's place.
    assert "| a+merge | 25% | 250 | 0.100 | 0.700 |" in said
    assert "- a at 25%, all of A, B2: kl -0.3000 [-0.3000, -0.3000] from b; KL 0.40 of " \
        "b's; exact recall (B2) 75% of the full cache's" in said
    assert "| a+merge | 25% | B2 |  |  | +0.1000 [-0.0500, +0.2500] | 12% |" \
        in said


def test_all_tasks_together_are_a_line_a_policy(tmp_path):
    more = [row("no-context", 0, "kl", 3, **ALL),
            merged("kl", .15) | ALL | {"mean": .15},
            row("a", .5, "kl", .1, **ALL), row("a", .5, "em", .7)]
    said = table_of(tmp_path, "--pooled", rows=ROWS + more).stdout
    assert said.splitlines()[0].endswith(", test, all of A, B2")
    assert said.splitlines()[2:] == [
        "| policy | 25%: KL | 50%: KL | 25%: nll | 50%: nll | 25%: em (B2) | "
        "50%: em (B2) |", "|" + "---|" * 7,
        "| no-context | 3.000 | 3.000 |  |  | 0.000 | 0.000 |",
        "| a+merge | 0.150 |  |  |  | 0.700 |  |",
        "| a | 0.200 | 0.100 |  |  | 0.600 | 0.700 |",
        "| b | 0.500 |  |  |  | 0.400 |  |", ""]


def test_what_knows_the_answers_is_no_rival(tmp_path):
    more = [row("oracle", .25, m, x) for m, x in (("em", .75), ("kl", .01))]
    more.append(row("oracle", .25, "kl", .01, **ALL))
    said = table_of(tmp_path, "--of", "a", "--metrics", "kl,em",
                    rows=ROWS + more).stdout
    assert "| oracle | 25% | 250 | 0.010 | 0.750 |\n| a | 25% | 250 | " \
        "**0.200** | **0.600**\\* |" in said
    assert "KL 0.40 of b's" in said


def test_the_same_entries_elsewhere_are_no_rival(tmp_path):
    more = [row("a:reposition=on", .25, m, x) for m, x in (("em", .7),
                                                            ("kl", .1))]
    more.append(row("a:reposition=on", .25, "kl", .1, **ALL))
    said = table_of(tmp_path, "--of", "a", "--metrics", "kl,em",
                    rows=ROWS + more).stdout
    assert "| a | 25% | 250 | **0.200** | **0.600**\\* |" in said
    assert "| a:reposition=on | 25% | 250 | 0.100 | 0.700 |" in said
    assert "KL 0.40 of b's" in said


def test_the_distance_to_a_named_policy_is_a_table(tmp_path):
    more = [row("b", .25, f"{m}_minus_a", d, lo=d - .1, hi=d + .1, against="a",
                **ALL) for m, d in (("kl", .3), ("em", -.2))]
    more.append(row("b", .25, "nll_minus_a", .5, against="a"))
    said = table_of(tmp_path, rows=ROWS + more).stdout
    assert "| less a, all of A, B2 | budget | nll | KL | em |" in said
    assert "| b | 25% |  | +0.3000 [+0.2000, +0.4000] | " \
        "-0.2000 [-0.3000, -0.1000] |" in said


def test_a_run_of_one_task_has_its_distances(tmp_path):
    alone = [r for r in ROWS if r["task"] != "all"]
    alone.append(row("b", .25, "nll_minus_a", .5, against="a"))
    said = table_of(tmp_path, "--of", "a", rows=alone).stdout
    assert "- a at 25%, B2: em +0.2000 [+0.2000, +0.2000] from b; " in said
    assert "exact recall (B2) 75% of the full cache's" in said
    assert "| less a, B2 | budget | nll | KL | em |" in said
    assert "| b | 25% | +0.5000 [+0.5000, +0.5000] |  |  |" in said


def test_what_a_model_cannot_do_is_no_result(tmp_path):
    """em has the note, which says nothing about other metrics."""
    rows = [{**r, "note": "model too weak"} if r["metric"][:2] == "em" else r
            for r in ROWS]
    said = table_of(tmp_path, "--of", "a", "--metrics", "kl,em",
                    rows=rows).stdout
    assert "| full | all | 1000 | 0.000 | 0.800 (too weak) |" in said
    assert "| a | 25% | 250 | **0.200** | 0.600 (too weak) |" in said
    assert "from b; KL 0.40 of b's; exact recall (B2): model too weak" in said
    assert "full cache's" not in said
    assert "| a+merge | 25% | B2 |  |  | model too weak | 12% |" in said


@pytest.mark.parametrize("field, one, other", [
    ("settings", "01ab", "23cd"), ("settings", "01ab", None),
    ("gates", "none", "9d6d"), ("seed", 1, 2), ("n", 40, 12)])
def test_other_experiments_are_other_tables(tmp_path, field, one, other):
    rows = [{**row("a", .25, "kl", .2 if x == one else .3), "seed": 1,
             "gates": "none", field: x} for x in (one, other)]
    rows = [{k: v for k, v in r.items() if v is not None} for r in rows]
    tables = table_of(tmp_path, rows=rows).stdout.split("### ")[1:]
    assert len(tables) == 2
    for x, mean in ((one, "0.200"), (other, "0.300")):
        said = next(t for t in tables if f"| a | 25% | 250 | **{mean}** |" in t)
        assert f"{x} documents a task" in said if field == "n" else \
            f", {field} {x or 'not said'}\n" in said


def test_few_documents_get_no_star(tmp_path):
    for n in (7, 8):
        rows = [{**r, "n": n} for r in ROWS if r["task"] != "all"]
        said = table_of(tmp_path, rows=rows).stdout
        assert ("**0.600**\\*" in said) == (n == 8)


def test_a_star_is_about_the_second(tmp_path):
    """Another run may have brought a policy between the two."""
    for mean, star in ((.3, True), (.5, False)):
        rows = ROWS + [row("c", .25, "em", mean)]
        said = table_of(tmp_path, rows=rows).stdout
        assert ("**0.600**\\*" in said) == star


def test_all_is_of_its_tasks(tmp_path):
    """Sets of tasks are not compared with each other, and rows that do not
    name theirs count where they can be of the tasks that are there."""
    parts = [row(p, .25, "kl", m, task=t) for t in "A B2 C".split()
             for p, m in (("a", .1), ("b", .2))]
    three = [row("a", .25, "kl", .3, task="all", tasks="A,B2,C", n=120),
             row("b", .25, "kl", .4, task="all", tasks="A,B2,C", n=120)]
    two = [row("a", .25, "kl", .1, **ALL), row("b", .25, "kl", .4, **ALL)]
    said = table_of(tmp_path, "--of", "a", rows=parts + three + two).stdout
    assert sentences(said) == ["- a at 25%, all of A, B2, C: KL 0.75 of b's",
                               "- a at 25%, all of A, B2: KL 0.25 of b's"]
    for rows, n in ((three, 1), (two, 0)):
        rows = [{k: v for k, v in r.items() if k != "tasks"} for r in rows]
        said = table_of(tmp_path, "--of", "a", rows=parts + rows).stdout
        assert len(sentences(said)) == n


def test_a_split_without_rows_is_an_error(tmp_path):
    r = table_of(tmp_path, "--split", "tuning")
    assert r.returncode == 1 and "no row of split tuning" in r.stderr
