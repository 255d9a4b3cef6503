"""`ebb eval` from the command line, with the real model and a short text."""
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

WORDS = ("the tide was slow and grey over sand when a wind had risen from "
         "harbour walls where boats lay tied with rope under old cranes").split()
ARGS = ["--context", "384", "--docs", "1", "--tasks", "B1,F",
        "--policy", "full,no-context,streamingllm,keydiff",
        "--budget", "0.25"]
N_RECORDS = 2 * 4


def write_text(path, sentences):
    r = random.Random(1)
    path.write_text(" ".join(
        " ".join(r.choice(WORDS) for _ in range(9)).capitalize() + "."
        for _ in range(sentences)))
    return path


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("eval") / "text.txt", 400)


def command(ebb, model, text, out):
    return [ebb, "eval", "--model", model, "--text", text, "--json", out,
            "--gates", "none", *ARGS]


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(ebb, small_model, text, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "out.json"
    r = subprocess.run(command(ebb, small_model, text, out),
                       capture_output=True, text=True, timeout=300)
    assert r.returncode == 0, r.stderr
    return out, r


def test_rows_and_table(whole):
    out, r = whole
    cells = {(x["task"], x["policy"], x["budget"], x["metric"]): x
             for x in rows(out)}
    for task in ("B1", "F", "all"):
        full = cells[task, "full", 1, "kl"]
        none = cells[task, "no-context", 0, "kl"]
        kept = [cells[task, p, 0.25, "kl"] for p in ("streamingllm",
                                                     "keydiff")]
        assert full["mean"] == 0 and none["mean"] > 0
        assert all(x["mean"] > 0 for x in kept)
        assert kept[0]["bytes"] == kept[1]["bytes"]
        assert kept[0]["bytes"] == pytest.approx(full["bytes"] / 4, rel=0.01)
        for x in (full, none, *kept):
            assert x["lo"] <= x["mean"] <= x["hi"]
            assert x["n"] == (2 if task == "all" else 1)
            assert x["mode"] == "agnostic" and x["context"] == 384
    # One policy's best rival is the other: their differences mirror.
    a = cells["F", "keydiff", 0.25, "kl_minus_best"]
    b = cells["F", "streamingllm", 0.25, "kl_minus_best"]
    assert a["mean"] == -b["mean"] and a["against"] == "streamingllm"
    # A passkey in plain words is what even a small model finds.
    assert cells["B1", "full", 1, "nll"]["mean"] < \
        cells["B1", "no-context", 0, "nll"]["mean"]
    assert "streamingllm" in r.stdout and "KiB" in r.stdout
    assert "left" in r.stderr


def test_a_killed_run_goes_on(whole, ebb, small_model, text, tmp_path):
    out = tmp_path / "out.json"
    part = tmp_path / "out.json.part"
    lines = (whole[0].with_name("out.json.part").read_bytes()
             .splitlines(keepends=True))
    assert len(lines) == N_RECORDS
    # The system kills it in the middle of its third line.
    limit = len(lines[0] + lines[1]) + 20
    r = subprocess.run(["prlimit", f"--fsize={limit}", "--core=0",
                        *command(ebb, small_model, text, out)],
                       capture_output=True, timeout=300)
    assert r.returncode == -signal.SIGXFSZ
    assert part.stat().st_size == limit and not out.exists()
    r = subprocess.run(command(ebb, small_model, text, out),
                       capture_output=True, text=True, timeout=300)
    assert r.returncode == 0, r.stderr
    assert part.read_text().count("\n") == N_RECORDS
    assert out.read_text() == whole[0].read_text()


@pytest.fixture(scope="module")
def quick(ebb, tiny, text, tmp_path_factory):
    """Rows of two tasks with a merge, of a quick model, and their file."""
    out = tmp_path_factory.mktemp("quick") / "out.json"
    r = subprocess.run([ebb, "eval", "--model", tiny, "--text", text, "--json",
                        out, "--gates", "none", "--context", "384", "--docs",
                        "2", "--tasks", "A,F", "--budget", "0.25", "--policy",
                        "streamingllm,keydiff,keydiff+merge"],
                       capture_output=True, text=True, timeout=300)
    assert r.returncode == 0, r.stderr
    return rows(out), out


def quick_command(ebb, tiny, *texts):
    return [ebb, "eval", "--model", tiny, "--gates", "none", "--context",
            "320", "--docs", "1", "--tasks", "A", "--budget", "0.5",
            "--policy", "streamingllm", "--text", *texts]


def test_a_reader_that_leaves_early_costs_no_rows(ebb, tiny, text, tmp_path):
    """The table is longer than what waits in a buffer for the end."""
    out = tmp_path / "out.json"
    command = [ebb, "eval", "--model", tiny, "--text", text, "--gates", "none",
               "--context", "320", "--docs", "1", "--tasks", "A,F", "--budget",
               ",".join(f"0.{i}" for i in range(1, 10)), "--policy",
               "streamingllm,random,keydiff,knorm", "--json", out]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        r = subprocess.run(command, stdout=writing, stderr=subprocess.DEVNULL,
                           timeout=300)
    finally:
        os.close(writing)
    assert r.returncode == -signal.SIGPIPE
    assert {r["policy"] for r in rows(out)} == {
        "full", "streamingllm", "random", "keydiff", "knorm"}


def test_a_table_that_cannot_be_written_is_told(ebb, tiny, text):
    with open("/dev/full", "w") as full:
        r = subprocess.run(quick_command(ebb, tiny, text), stdout=full,
                           stderr=subprocess.PIPE, text=True, timeout=300)
    assert r.returncode == 1
    assert "cannot write to standard output: No space left" in r.stderr


def test_texts_that_end_elsewhere_are_other_texts(ebb, tiny, text, tmp_path):
    """The same tokens, in windows that begin elsewhere."""
    words = text.read_text()
    cut = words.index(". ", 3000) + 1
    parts = [tmp_path / name for name in "ab"]
    parts[0].write_text(words[:cut])
    parts[1].write_text(words[cut:])
    out, found = tmp_path / "out.json", []
    for texts in (parts, [text]):
        r = subprocess.run([*quick_command(ebb, tiny, *texts), "--json", out],
                           capture_output=True, text=True, timeout=300)
        assert r.returncode == 0, r.stderr
        assert "cells of documents to measure" in r.stderr
        found.append({r["settings"] for r in rows(out)})
    assert len(found[1]) == 2 and found[0] < found[1]


def test_a_text_counts_once(ebb, tiny, text, tmp_path):
    again = tmp_path / "again.txt"
    again.write_bytes(text.read_bytes())
    r = subprocess.run(quick_command(ebb, tiny, text, again),
                       capture_output=True, text=True, timeout=300)
    assert r.returncode == 1
    assert f"{text} and {again} are the same text" in r.stderr


def test_a_name_is_not_cut_inside_a_character(ebb, tiny, text, tmp_path):
    model = tmp_path / ("x" + 80 * "\u00e9" + ".gguf")
    model.symlink_to(tiny)
    page = tmp_path / "page.html"
    r = subprocess.run([*quick_command(ebb, model, text), "--html", page],
                       capture_output=True, timeout=300)
    assert r.returncode == 0, r.stderr
    assert "x\u00e9\u00e9" in page.read_text(encoding="utf-8")


def table_of(path, *args):
    r = subprocess.run([sys.executable, ROOT / "bench" / "quality_table.py",
                        path, "--split", "own", *args],
                       capture_output=True, text=True, timeout=60)
    assert r.returncode == 0, r.stderr
    return r.stdout


def test_the_table_says_how_much_was_routed(quick):
    found, path = quick
    row = next(x for x in found if x["metric"] == "nll_minus_drop" and
               x["task"] == "A")
    assert row["routed"] > 0
    line = next(x for x in table_of(path).splitlines()
                if x.startswith("| keydiff+merge | 25% | A |"))
    assert line.endswith(f"| {100 * row['routed']:.0f}% |")


def test_conversations(ebb, tiny, tmp_path):
    """All policies that there are, budgets as they come, and a conversation so
    short that an eighth of it is less than what is protected."""
    told = {"role": "user", "content": "My dog Biscuit runs along the beach. "
            * 10}
    answer = {"role": "assistant", "content": "What a lovely dog."}
    call = {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c", "type": "function",
         "function": {"name": "f", "arguments": "{}"}}]}
    path = tmp_path / "chats.jsonl"
    path.write_text("\r\n".join(json.dumps(x) for x in (
        [told, answer], {"messages": [told, call]})) + "\r\n\r\n")
    out = tmp_path / "out.json"
    r = subprocess.run([ebb, "eval", "--model", tiny, "--gates",
                        Path(tiny).with_name("gates.safetensors"), "--chats",
                        path, "--json", out], capture_output=True, text=True,
                       timeout=300)
    assert r.returncode == 0, r.stderr
    assert "chats: 1 answer; passed by: 1 empty\n" in r.stderr
    found = rows(out)
    assert {x["task"] for x in found} == {"chats"}
    assert {0.125, 0.25, 0.5} < {x["budget"] for x in found
                                 if x["policy"] in ("dbtrimkv", "full")}
    assert "chats" in table_of(out, "--tasks", "chats")


def test_the_first_conversations(ebb, tiny, tmp_path):
    told = {"role": "user", "content": "My dog Biscuit runs along the beach. "
            * 10}
    answer = {"role": "assistant", "content": "What a lovely dog."}
    shown = {"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:,"}}]}
    path = tmp_path / "chats.jsonl"
    path.write_text("\n".join(json.dumps(x) for x in (
        [answer, told, answer], [shown, answer], [told, answer, told, answer],
        [{**told, "content": "\0"}, answer])))
    args = [ebb, "eval", "--model", tiny, "--gates", "none", "--chats", path,
            "--policy", "full"]
    passed = ("; passed by: 1 with nothing before them, 2 with an image, a "
              "NUL or other content that is no text, before them or in them\n")
    for docs, said in (("2", "chats: 2 of 3 answers"),
                       ("3", "chats: 3 answers")):
        r = subprocess.run([*args, "--docs", docs], capture_output=True,
                           text=True, timeout=60)
        assert r.returncode == 0, r.stderr
        assert said + passed in r.stderr


@pytest.mark.parametrize("keep", [False, True])
def test_a_stopped_run_says_whether_it_can_go_on(ebb, tiny, tmp_path, keep):
    # So many documents that it cannot be over before it is told to stop.
    text = write_text(tmp_path / "text.txt", 20000)
    args = ["--json", tmp_path / "out.json"] if keep else []
    p = subprocess.Popen([ebb, "eval", "--model", tiny, "--text", text,
                          "--gates", "none", "--context", "384",
                          "--docs", "200", "--tasks", "F", *args],
                         stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
                         text=True)
    told = ""
    while "left" not in told:  # the progress line
        c = p.stderr.read(1)
        assert c, told
        told += c
    p.send_signal(signal.SIGINT)
    told += p.stderr.read()
    assert p.wait() == 1
    assert ("the same command goes on" in told) == keep
    assert ("without --json" in told) != keep


@pytest.mark.parametrize("args, words", [
    ([], ["--model"]),
    (["--model", "m", "--policy", "keydif"], ["keydif", "keydiff"]),
    (["--model", "m", "--policy", "dbtrimkv", "--gates", "none"],
     ["dbtrimkv", "gates"]),
    (["--model", "m", "--tasks", "B9"], ["B9", "B"]),
    (["--model", "m", "--tasks", "chats"], ["--tasks", "--chats FILE"]),
    (["--model", "m", "--chats", "c", "--tasks", "A"], ["--chats", "--tasks"]),
    (["--model", "m", "--chats", "c", "--text", "t"], ["--chats", "--text"]),
    (["--model", "m", "--chats", "c", "--mode", "aware"],
     ["--chats", "--mode aware"]),
    (["--model", "m", "--against", "keydif"], ["--against", "keydiff"]),
    (["--model", "m", "--policy", ""], ["--policy", "empty"]),
    (["--model", "m", "--tasks", ""], ["--tasks", "empty"]),
    (["--model", "m", "--budget="], ["--budget", "empty"]),
    (["--model", "m", "--context", ""], ["--context", "''"]),
    (["--model", "m", "--text", ""], ["--text", "empty"]),
    (["--model", "m", "--against", ""], ["--against", "empty"]),
    (["--model", "m", "--policy", "full,"], ["--policy", "'full,'"]),
    (["--model", "m", "--budget", "2"], ["--budget", "2"]),
    (["--model", "m", "--budget", "nan"], ["--budget", "nan"]),
    (["--model", "m", "--policy", "full", "--against", "snapkv"],
     ["snapkv"]),
    (["--model", "m", "--policy", "keydiff+lokm"], ["lokm", "lookm"]),
    (["--model", "m", "--policy", "keydiff+merge:beta=1"], ["beta", "alpha"]),
    (["--model", "m", "--policy", "dbtrimkv+merge:alpha=2"],
     ["--policy", "alpha", "'2'", "from 0 to 1"]),
    (["--model", "m", "--policy", "keydiff+merge:alpha=0:alpha=1"],
     ["--policy", "alpha is there twice"]),
    (["--model", "m", "--policy", "full+merge"],
     ["--policy", "full has no fate", "nothing to merge"]),
    (["--model", "m", "--policy", "keydiff,keydiff"],
     ["--policy", "keydiff is there twice"]),
    (["--model", "m", "--budget", "0.5,0.50"], ["--budget", "0.5", "twice"]),
    (["--model", "m", "--tasks", "A,F,A"], ["--tasks", "A is there twice"]),
    (["--model", "m", "--json", "a", "--answers", "b"],
     ["--answers", "--json"]),
    (["--model", "m", "--json", "a", "--html", "./a"],
     ["--json a", "--html ./a"]),
    (["--model", "m", "--json", "a", "--html", "a.part"],
     ["--json a", "--html a.part"]),
    (["--model", "m", "--answers", "a", "--html", "a"],
     ["--answers a", "--html a"]),
    (["--model", "m", "--html", "m"], ["--model m", "--html m"]),
    (["--model", "m", "--gates", "g", "--json", "g"],
     ["--gates g", "--json g"]),
    (["--model", "m", "--chats", "c", "--answers", "./c"],
     ["--chats c", "--answers ./c"]),
    (["--model", "m", "--text", "s", "t", "--html", "t"],
     ["--text t", "--html t"]),
    (["--model", "m", "--context", "10"], ["--context", "320"])])
def test_wrong_usage(ebb, args, words):
    r = subprocess.run([ebb, "eval", *args], capture_output=True, text=True,
                       timeout=60)
    assert r.returncode == 2 and not r.stdout
    for word in words:
        assert word in r.stderr


def test_what_is_read_is_not_written(ebb, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("What the user has no copy of.")
    (tmp_path / "link").symlink_to("text.txt")
    (tmp_path / "sub").mkdir()
    for name in ("link", "sub/../text.txt"):
        r = subprocess.run([ebb, "eval", "--model", "m", "--text", text,
                            "--html", tmp_path / name], capture_output=True,
                           text=True, timeout=60)
        assert r.returncode == 2
        assert f"--text {text}" in r.stderr
        assert f"--html {tmp_path / name}" in r.stderr
    assert text.read_text() == "What the user has no copy of."


def test_novels_are_not_written(ebb, tiny, tmp_path):
    novel = tmp_path / "ebb" / "texts" / "sense-and-sensibility.txt"
    novel.parent.mkdir(parents=True)
    write_text(novel, 400)
    before = novel.read_text()
    r = subprocess.run([ebb, "eval", "--model", tiny, "--gates", "none",
                        "--split", "dev", "--context", "384", "--docs", "1",
                        "--tasks", "F", "--policy", "full", "--html", novel],
                       env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
                       capture_output=True, text=True, timeout=60)
    assert r.returncode == 1
    assert f"--html {novel}" in r.stderr and "--split" in r.stderr
    assert novel.read_text() == before


def test_help_and_faults(ebb, small_model, tmp_path):
    for args in (["eval", "--help"], ["help", "eval"]):
        r = subprocess.run([ebb, *args], capture_output=True, text=True,
                           timeout=60)
        assert r.returncode == 0 and "--budget" in r.stdout
    short = tmp_path / "short.txt"
    short.write_text("Too short. " * 20)
    r = subprocess.run([ebb, "eval", "--model", small_model, "--text", short],
                       capture_output=True, text=True, timeout=60)
    assert r.returncode == 1 and "documents" in r.stderr


def test_the_second_models_gates_keep_facts(ebb, second_model, text,
                                            tmp_path):
    """Those that are committed, found by themselves: with a quarter of the
    entries they keep what is told, and nothing else does."""
    out = tmp_path / "second.json"
    r = subprocess.run(
        [ebb, "eval", "--model", second_model, "--text", text, "--json", out,
         "--context", "512", "--docs", "1", "--tasks", "B2,F", "--budget",
         "0.25", "--policy", "full,dbtrimkv,keydiff,streamingllm"],
        capture_output=True, text=True, timeout=390)
    assert r.returncode == 0, r.stderr
    kl = {x["policy"]: x["mean"] for x in rows(out)
          if x["metric"] == "kl" and x["task"] == "all"}
    assert 0 < kl["dbtrimkv"] < 0.5 * min(kl["keydiff"], kl["streamingllm"])
