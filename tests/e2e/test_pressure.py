"""A pool that is far too small, and clients and machines that fail meanwhile.
On a tiny model (tiny_model.py), where only the cache matters."""
import json
import re
import signal
import time

import pytest
from ebb_server import CHAT, Server, chat, read_until, request, words
from load import MIB, Watch, evicted, rss, together
from tiny_model import LISTS, TOKEN_BYTES

POOL = 160  # tokens
LONG = 1650  # words of a prompt, and about as many tokens
# Program, libraries, stacks of threads, tokenizer, conversations' texts and
# tables, buffers of connections, and what the allocator keeps. Weights, KV
# budget and step memory are said at the start.
BESIDE = 24 * MIB


def stream(server, body):
    """The text and the last kv object of a streamed answer."""
    r = server.post(CHAT, {**body, "stream": True})
    assert r.status == 200, r.text
    events = [json.loads(line[6:]) for line in r.text.split("\n")
              if line.startswith("data: {")]
    kv, = [e["kv"] for e in events if "kv" in e]
    return kv


def is_at_rest(server):
    server.wait_for(running=0, waiting=0)
    assert server.value("ebb_kv_bytes", state="live") == 0
    assert server.value("ebb_kv_bytes", state="reserved") == 0
    return True


@pytest.mark.parametrize("admission", ["retention+drop", "retention+merge"])
def test_prompts_ten_times_the_pool_are_answered_together(serve, admission):
    server = serve(POOL, "--max-running", "4", "--policy", "dbtrimkv")
    seen = []

    def ask(i):
        body = chat(words(("long", i), LONG), max_tokens=POOL // 4,
                    ignore_eos=True, kv={"admission": admission})
        kv = stream(server, body) if i % 2 else \
            server.post(CHAT, body).json["kv"]
        seen.append(kv)

    with Watch(server, pause=0.002) as watch:
        together([lambda i=i: ask(i) for i in range(8)], lanes=8)
    assert len(seen) == 8 and watch.n > 20
    for kv in seen:
        assert kv["logical_tokens"] > 10 * POOL and kv["lossy"]
        assert 20 * LISTS <= kv["retained_entries"] <= POOL * LISTS
    assert evicted(server)["admission"] > 0
    assert server.value("ebb_requests_total", outcome="ok", route="chat") == 8
    assert is_at_rest(server)


def test_an_answer_longer_than_the_pool_goes_on(serve):
    server = serve(POOL)
    with Watch(server, pause=0.002):
        kv = stream(server, chat("Hi.", max_tokens=5 * POOL, ignore_eos=True))
    assert kv["logical_tokens"] > 5 * POOL
    assert kv["retained_entries"] <= POOL * LISTS
    assert evicted(server)["pressure"] > 4 * POOL * LISTS


def test_clients_that_leave_while_their_prompt_is_read(serve):
    """What they held is free at once, and others notice nothing."""
    server = serve(POOL, "--max-running", "4")
    whole = chat(words("stays", 60), max_tokens=20, ignore_eos=True,
                 kv={"policy": "exact"})
    want = server.post(CHAT, whole).json["choices"][0]["message"]["content"]
    before = server.value("ebb_prefill_tokens_total")

    def leave(i):
        with server.connect() as s:
            s.sendall(request("POST", CHAT, {
                **chat(words(("leaves", i), LONG)), "stream": True}))
            if i % 3 == 0:
                read_until(s, b"\r\n\r\n")
            time.sleep(0.01 * (i % 5))

    def stay(i):
        r = server.post(CHAT, whole)
        assert r.status == 200, r.text
        assert r.json["choices"][0]["message"]["content"] == want
        assert not r.json["kv"]["lossy"]

    with Watch(server, pause=0.01):
        together([lambda i=i: (stay if i % 6 == 5 else leave)(i)
                  for i in range(36)], lanes=6)
        assert is_at_rest(server)
    assert server.value("ebb_requests_total", outcome="cancelled", route="chat") > 0
    # Some were in the middle: neither none nor all of it was computed.
    read = server.value("ebb_prefill_tokens_total") - before
    assert 0 < read < 30 * LONG
    assert server.post(CHAT, whole).status == 200


def test_a_killed_server_starts_again(ebb, tiny, serve):
    server = serve(POOL, "--max-running", "4")
    body = chat(words("again", 40), max_tokens=20, ignore_eos=True)
    want = server.post(CHAT, body).json["choices"][0]["message"]["content"]

    # Longer than anybody waits: some are in the middle when it is killed.
    asking = [server.connect() for _ in range(8)]
    for i, s in enumerate(asking):
        s.sendall(request("POST", CHAT, chat(
            words(("killed", i), LONG // 2), max_tokens=1000, ignore_eos=True,
            stream=True)))
    for s in asking:
        read_until(s, b"\r\n\r\n")
    assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    for s in asking:
        s.close()
    again = Server(ebb, tiny, "--kv-memory", str(POOL * TOKEN_BYTES), "--port",
                   str(server.port), "--gates",
                   tiny.with_name("gates.safetensors"))
    try:
        r = again.post(CHAT, body).json
        assert r["choices"][0]["message"]["content"] == want
    finally:
        again.close()


def test_memory_is_what_the_start_says_and_no_more(serve):
    """At the start, over 400 conversations under pressure, and after."""
    server = serve(4 * MIB // TOKEN_BYTES, "--max-running", "16")
    told = {k: float(v) * MIB for k, v in re.findall(
        r"(model file|repacked weights|KV budget|activations[a-z, ]*) "
        r"([\d.]+)", server.out.read_text())}
    assert len(told) == 4
    limit = sum(told.values()) + BESIDE
    history = []

    def ask(i):
        r = server.post(CHAT, chat(words(("rss", i), 150), max_tokens=8,
                                   ignore_eos=True))
        assert r.status == 200, r.text

    assert rss(server) <= limit
    for batch in range(2):
        with Watch(server, pause=0.02) as watch:
            together([lambda i=i: ask(i) for i in range(
                200 * batch, 200 * batch + 200)], lanes=16)
        history += [watch.most_rss, rss(server)]
    assert sum(evicted(server).values()) > 0
    print("beside what was told, MiB:", [
        round((n - limit + BESIDE) / MIB, 1) for n in history])
    assert max(history) <= limit
    # Nothing grows with the number of conversations.
    assert history[3] <= history[1] + 4 * MIB
