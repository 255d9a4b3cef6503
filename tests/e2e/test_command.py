"""The command line, start and end of the program."""
import json
import math
import signal
import struct
import subprocess
import threading
import time

import pytest

from ebb_server import CHAT, ENDLESS, Answer, Server, chat, read_all, \
    read_until, request, until


def run(ebb, *args):
    return subprocess.run([ebb, *map(str, args)], capture_output=True,
                          text=True, timeout=60)


def test_version_and_help(ebb):
    assert run(ebb, "--version").stdout.startswith("ebb ")
    for args in (["help"], ["--help"], ["help", "serve"], ["serve", "--help"]):
        r = run(ebb, *args)
        assert r.returncode == 0 and "serve" in r.stdout + " serve"
    assert "--kv-memory" in run(ebb, "serve", "--help").stdout
    for args in (["bench", "--help"], ["bench", "-h"], ["help", "bench"]):
        r = run(ebb, *args)
        assert r.returncode == 0 and "--rounds" in r.stdout and not r.stderr


@pytest.mark.parametrize("args, words", [
    ([], ["ebb serve"]),
    (["sevre"], ["sevre"]),
    (["help", "nothing"], ["nothing"]),
    (["serve", "--kv-memry", "1GiB"], ["--kv-memry", "--kv-memory"]),
    (["serve", "--port", "70000"], ["--port", "70000"]),
    (["serve", "--port", "x"], ["--port", "x"]),
    (["serve", "--kv-type", "f17"], ["f17", "f16"]),
    (["serve", "--alias", ""], ["--alias", "empty"]),
    (["bench", "--model", "m", "--prompts", ""], ["--prompts"]),
    (["gates", "train", "--text", ""], ["--text", "empty"]),
    (["gates", "train", "--mix", ""], ["--mix", "empty"]),
    (["serve", "--kv-memory", "1EiB"], ["--kv-memory"]),
    (["serve", "--min-tokens-per-head", "19"], ["19", "20 tokens"]),
    (["serve", "--policy", "exact", "--session-tokens", "50"],
     ["--session-tokens", "--policy exact"])])
def test_wrong_usage(ebb, args, words):
    r = run(ebb, *args)
    assert r.returncode == 2 and not r.stdout
    for word in words:
        assert word in r.stderr
    assert len(r.stderr) < 2000 or args == []


def test_a_model_that_is_not_there(ebb, tmp_path):
    r = run(ebb, "serve", "--model", tmp_path / "no-model.gguf")
    assert r.returncode == 1 and "no-model.gguf" in r.stderr
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + b"\xff" * 100)
    r = run(ebb, "serve", "--model", bad)
    assert r.returncode == 1 and "bad.gguf" in r.stderr


def test_bench_finds_the_gates_of_a_model(ebb, small_model, tiny):
    short = ("--prompts", 16, "--batches", 1, "--depths", 16, "--rounds", 1)
    r = run(ebb, "bench", "--model", small_model, "--gates", "auto", *short)
    assert r.returncode == 0 and "with gates" in r.stdout
    r = run(ebb, "bench", "--model", tiny, "--gates", "auto", *short)
    assert r.returncode == 1 and "--gates auto" in r.stderr


def test_settings_that_the_model_cannot_do(ebb, small_model):
    r = run(ebb, "serve", "--model", small_model, "--max-context", 100000)
    assert r.returncode == 2 and "100000" in r.stderr and "8192" in r.stderr
    r = run(ebb, "serve", "--model", small_model, "--kv-memory", "100KiB")
    assert r.returncode == 2 and "102400" in r.stderr
    assert "--kv-memory" in r.stderr


@pytest.mark.parametrize("args, words", [
    (["--policy", "dbtrimkw"], ["--policy", "dbtrimkw", "streamingllm"]),
    (["--policy", "h2o"], ["--policy", "h2o", "h2o+drop"]),
    (["--policy", "fastv"], ["--policy", "fastv", "snapkv"]),
    (["--gates", "none.safetensors"], ["--gates", "none.safetensors"]),
    (["--gates", "none", "--policy", "dbtrimkv"],
     ["--policy: dbtrimkv", "no retention gates", "train"]),
    (["--gates", "none", "--admission", "trimkv+drop"],
     ["--admission: trimkv+drop", "no retention gates", "train"]),
    (["--gates", "none", "--admission", "retention+merge"],
     ["--admission: retention+merge", "no retention gates", "train"]),
    (["--watch-columns=off", "--admission", "snapkv+cam"],
     ["--admission: snapkv+cam", "--watch-columns"]),
    (["--admission", "snapkw+merge"], ["--admission", "snapkw", "selkv"]),
    (["--admission", "retention+glue"], ["--admission", "glue"]),
    (["--unbounded-context", "--session-tokens", 8192],
     ["--session-tokens", "8192"])])
def test_names_and_caps_that_mean_nothing_here(ebb, small_model, args, words):
    r = run(ebb, "serve", "--model", small_model, "--kv-memory", "64MiB",
            *args)
    assert r.returncode == 2 and "listening" not in r.stdout
    for word in words:
        assert word in r.stderr


def put_gates(path, layers, width, **metadata):
    """Gates of zeros for inputs of 576 and 3 KV heads, by the format."""
    header, end = {"__metadata__": {"gate": "rg", **metadata}}, 0
    for layer in range(layers):
        for name, shape in (("linear1.weight", [width, 576]),
                            ("linear1.bias", [width]),
                            ("linear2.weight", [3, width]), ("bias", [3])):
            size = 2 * math.prod(shape)
            header[f"model.layers.{layer}.self_attn.retention_gate.{name}"] = {
                "dtype": "F16", "shape": shape,
                "data_offsets": [end, end + size]}
            end += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))


def test_gates_that_do_not_fit_stop_the_start(ebb, small_model, tmp_path):
    gates = tmp_path / "g.safetensors"
    for layers, metadata, words in (
            (29, {}, ["29 layers", "30 layers"]),
            (30, {"base_fingerprint": "abc"}, ["another model", "abc"])):
        put_gates(gates, layers, 4, **metadata)
        r = run(ebb, "serve", "--model", small_model, "--kv-memory", "64MiB",
                "--gates", gates)
        assert r.returncode == 2 and "listening" not in r.stdout
        for word in ["--gates", str(gates)] + words:
            assert word in r.stderr


def test_gates_change_no_answer_while_nothing_is_forgotten(launch, tmp_path):
    gates = tmp_path / "g.safetensors"
    put_gates(gates, 30, 4)
    answers = []
    for which, line in ((gates, f"retention gates: {gates}"),
                        ("none", "no retention gates: --gates none")):
        server = launch("--kv-memory", "64MiB", "--gates", which)
        assert line in server.log()
        shown = server.get("/admin/config").json
        assert shown["gates"] == str(which)
        r = server.post(CHAT, chat("Name three rivers.", max_tokens=12))
        answers.append(r.json["choices"][0]["message"]["content"])
        server.close()
    assert answers[0] and answers[0] == answers[1]


def test_the_settings_in_force_are_shown(launch):
    server = launch("--kv-memory", "64MiB", "--policy", "none")
    shown = server.get("/admin/config").json
    assert shown["kv_memory"] == 64 << 20
    assert shown["policy"] == "exact" and shown["admission"] == "none"
    assert shown["max_context"] == 8192 and shown["threads"] >= 1
    assert shown["min_tokens_per_head"] == 20


def test_a_context_without_end_needs_a_cap_below_it(launch):
    flags = ("--kv-memory", "64MiB", "--max-context", "512",
             "--unbounded-context")
    assert "--session-tokens below the context of 512" in launch(*flags).log()
    server = launch(*flags, "--session-tokens", "256")
    assert "--unbounded-context does nothing" not in server.log()
    server = launch(*flags, "--session-tokens", "256", "--admission", "none")
    assert "does nothing: with --admission none" in server.log()


def test_a_port_in_use(ebb, small_model, server):
    r = run(ebb, "serve", "--model", small_model, "--kv-memory", "64MiB",
            "--port", server.port)
    assert r.returncode == 1 and str(server.port) in r.stderr
    assert "listening" not in r.stdout


def test_too_few_open_files_are_told(ebb, small_model):
    r = run("prlimit", "--nofile=40:40", ebb, "serve", "--port", 0,
            "--model", small_model, "--kv-memory", "64MiB")
    assert r.returncode == 1 and "listening" not in r.stdout
    assert "40" in r.stderr and "64" in r.stderr and "files" in r.stderr


def test_few_open_files_still_serve_many_clients(small_model, ebb, tmp_path):
    wrapper = tmp_path / "ebb"
    wrapper.write_text(f"#!/bin/sh\nexec prlimit --nofile=64:64 {ebb} "
                       '"$@"\n')
    wrapper.chmod(0o755)
    server = Server(wrapper, small_model)
    try:
        idle = [server.connect() for _ in range(40)]
        assert server.get("/health").status == 200
        assert server.post(CHAT, chat(max_tokens=1)).status in (200, 503)
        for s in idle:
            s.close()
        until(lambda: server.post(CHAT, chat(max_tokens=1)).status == 200)
        assert server.log().count("connections are open") == 1
    finally:
        server.close()


def test_the_start_says_what_memory_is_for(launch):
    server = launch("--host", "localhost")
    text = server.out.read_text()
    assert "KV budget 256.0" in text and "MiB" in text
    assert text.endswith(f"listening on {server.url}\n")
    assert server.host in ("127.0.0.1", "[::1]")


def test_a_budget_below_the_context_is_told(launch):
    server = launch("--kv-memory", "8MiB", "--policy", "exact")
    assert "the context is 8192" in server.log()
    r = server.post(CHAT, chat("tides " * 1000))
    assert r.status == 400 and r.error["code"] == "kv_budget_exceeded"
    assert r.error["message"].startswith("the prompt has 10")
    assert "8388608 bytes" in r.error["message"]
    assert server.post(CHAT, chat(max_tokens=1)).status == 200
    assert server.stop(signal.SIGINT) == 0
    assert "30 s" in server.log() and "second signal" in server.log()


def test_names_of_the_model(launch, small_model):
    server = launch("--alias", "team/chat")
    ids = [m["id"] for m in server.get("/v1/models").json["data"]]
    assert ids == [small_model.name.removesuffix(".gguf"), "team/chat",
                   "default"]
    assert server.get("/v1/models/team%2Fchat").status == 200
    assert server.get("/v1/models/team/chat").json["context_length"] == 8192
    assert server.post(CHAT, chat(model="team/chat")).status == 200
    assert server.post(CHAT, chat(model="default")).status == 200
    assert server.post(CHAT, chat(model="team")).status == 404


def test_sigterm_lets_running_answers_finish(launch):
    server = launch()
    with server.connect() as s, server.connect():  # and one that says nothing
        s.sendall(request("POST", CHAT, chat(max_tokens=100, ignore_eos=True,
                                             stream=True), "Connection: close"))
        begin = read_until(s, b'"content":"')
        assert server.stop(signal.SIGTERM) == 0
        events = [json.loads(line[6:]) for line in Answer(
            begin + read_all(s)).text.split("\n")
            if line.startswith("data: {")]
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    assert events[-1]["kv"]["logical_tokens"] > 100


def test_new_requests_are_refused_while_draining(launch):
    server = launch()
    with server.connect() as s:
        s.sendall(request("POST", CHAT, chat(**ENDLESS, stream=True)))
        read_until(s, b'"content":"')
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.get("/health").status != 200)
        r = server.post(CHAT, chat())
        assert r.status == 503 and 1 <= int(r.headers["retry-after"]) <= 60
        assert r.error["type"] == "server_error"
        start = time.monotonic()
        assert server.stop(signal.SIGTERM) == 0, "a second signal"
        # Not for the 30 seconds that answers have to finish.
        assert time.monotonic() - start < 20


def test_a_second_signal_tells_those_whose_answers_it_ends(launch):
    server = launch()
    whole = [server.connect() for _ in range(4)]
    streams = [server.connect() for _ in range(4)]
    for s in whole:
        s.sendall(request("POST", CHAT, chat(**ENDLESS)))
    for s in streams:
        s.sendall(request("POST", CHAT, chat(**ENDLESS, stream=True)))
    for s in streams:
        read_until(s, b'"content":"')
    server.process.send_signal(signal.SIGTERM)
    until(lambda: server.get("/health").status != 200)
    status = []
    t = threading.Thread(target=lambda: status.append(server.stop()))
    t.start()
    for s in whole:
        assert b" 503 " in read_all(s)[:20]
        s.close()
    for s in streams:
        rest = read_all(s)
        assert b'data: {"error":{' in rest and b"data: [DONE]\n\n" in rest
        s.close()
    t.join()
    assert status == [0]


def test_what_does_not_finish_ends_with_an_error_in_its_stream(launch):
    server = launch("--drain-timeout", "500ms")
    with server.connect() as s:
        s.sendall(request("POST", CHAT, chat(**ENDLESS, stream=True)))
        read_until(s, b'"content":"')
        status = []
        t = threading.Thread(target=lambda: status.append(server.stop()))
        t.start()
        rest = read_all(s)
        t.join()
    assert status == [0]
    assert b'data: {"error":{' in rest and b"data: [DONE]\n\n" in rest


def test_sigint_ends_an_idle_server(launch):
    server = launch()
    assert server.stop(signal.SIGINT) == 0


def test_memory_stays_within_what_was_said(ebb, small_model):
    """RSS after load and a few answers, against the sum that was printed."""
    server = Server(ebb, small_model, "--kv-memory", "64MiB")
    try:
        for i in range(4):
            body = chat(f"{i} " + "tell me more " * 300, max_tokens=4)
            assert server.post(CHAT, body).status == 200
        line = [x for x in server.out.read_text().splitlines()
                if x.startswith("memory:")][0]
        said = float(line.split("=")[1].split()[0])
        status = open(f"/proc/{server.process.pid}/status").read()
        rss = int(status.split("VmRSS:")[1].split()[0]) / 1024
        assert rss < said, (rss, line)
    finally:
        server.close()
