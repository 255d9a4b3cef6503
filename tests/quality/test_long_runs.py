"""bench/quality.py names policies, fates and tasks that `ebb eval` has."""
import importlib.util
import subprocess
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
                                      ("rest", 1), ("ablation", 1)])
def test_every_name_is_known(ebb, stage, n):
    """Names are checked before the model is opened."""
    found = lines(stage)
    assert len(found) == n
    for line in found:
        r = subprocess.run([ebb, *line[1:]], capture_output=True, text=True,
                           timeout=60)
        assert r.returncode == 1 and "no-model.gguf" in r.stderr or \
            "other.gguf" in r.stderr, r.stderr


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
