"""`ebb gates train` that is killed, and the same command again."""
import json
import random
import signal
import struct
import subprocess

import pytest

from ebb_server import until

STEPS, KILLS = 20, 3


@pytest.fixture
def text(tmp_path):
    words = "the sea was calm and grey as boats left in spring".split()
    pick = random.Random(1)
    path = tmp_path / "text.txt"
    path.write_text(" ".join(pick.choice(words) for _ in range(2000)))
    return path


def command(ebb, tiny, text, out):
    return [ebb, "gates", "train", "--model", tiny, "--text", text, "--out",
            out, "--log", out.with_suffix(".log"), "--steps", str(STEPS),
            "--tokens", "256", "--memory", "8", "--width", "8", "--threads",
            "1", "--checkpoint-every", "0s"]


def steps_saved(out):
    """Of the checkpoint, which is always whole; 0 where there is none."""
    try:
        data = out.with_name(out.name + ".checkpoint").read_bytes()
    except FileNotFoundError:
        return 0
    n, = struct.unpack_from("<Q", data)
    return int(json.loads(data[8:8 + n])["__metadata__"]["step"])


def kill(args, out, step):
    """Runs args, and kills it when that step is saved."""
    with subprocess.Popen(args, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL) as p:
        until(lambda: steps_saved(out) >= step or p.poll() is not None)
        p.kill()
        assert p.wait() == -signal.SIGKILL, "it ended before it was killed"


def log(out):
    """Without the times."""
    lines = out.with_suffix(".log").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"}
            for line in lines]


def test_a_run_that_is_killed_ends_with_the_same_gates(ebb, tiny, text,
                                                       tmp_path):
    whole = tmp_path / "whole.safetensors"
    broken = tmp_path / "broken.safetensors"
    subprocess.run(command(ebb, tiny, text, whole), check=True, timeout=60,
                   capture_output=True)
    args, saved = command(ebb, tiny, text, broken), 0
    for _ in range(KILLS):
        before = saved
        kill(args, broken, before + 2)
        saved = steps_saved(broken)
        assert before + 2 <= saved < STEPS and not broken.exists()
    r = subprocess.run(args, check=True, timeout=60, capture_output=True,
                       text=True)
    assert r.stderr.startswith(f"step {saved} of {STEPS}: ")
    assert broken.read_bytes() == whole.read_bytes()
    assert log(broken) == log(whole)
    assert [s["step"] for s in log(whole)] == list(range(1, STEPS + 1))
