"""Conversations that forget, and what they say of it.

Most run on a tiny model (tiny_model.py), where only the cache matters. The
long form of the last one: EBB_TEST_ANSWERS=500.
"""
import json
import os
import random
import threading
import time

import pytest
from ebb_server import CHAT, chat, words
from load import Watch, evicted, together
from tiny_model import LISTS, TOKEN_BYTES

TEXT = "/v1/completions"
FORGETFUL = ("dbtrimkv", "trimkv", "streamingllm")
ANSWERS = int(os.environ.get("EBB_TEST_ANSWERS", "24"))


def adds_up(kv, lists=LISTS):
    assert kv["session"] is None
    assert kv["full_entries"] == kv["logical_tokens"] * lists
    assert kv["retained_entries"] + kv["evicted_entries"] == kv["full_entries"]
    assert 0 <= kv["merged_entries"] <= kv["routed_entries"]
    assert kv["routed_entries"] <= kv["evicted_entries"]
    assert (kv["merge_seconds"] > 0) >= (kv["routed_entries"] > 0)
    assert kv["retained_share"] == pytest.approx(
        kv["retained_entries"] / kv["full_entries"], abs=1e-9)
    assert kv["lossy"] == (kv["evicted_entries"] > 0)
    assert kv["bytes"] >= kv["retained_entries"] * TOKEN_BYTES / LISTS
    return kv


def kv_of(server, path, body):
    """The one kv object of an answer, whole or streamed."""
    r = server.post(path, body)
    assert r.status == 200, r.text
    if not body.get("stream"):
        return adds_up(r.json["kv"])
    events = [json.loads(line[6:]) for line in r.text.split("\n")
              if line.startswith("data: {")]
    carrying = [e for e in events if "kv" in e]
    assert len(carrying) == 1
    assert carrying[0]["choices"][0]["finish_reason"] in ("stop", "length")
    return adds_up(carrying[0]["kv"])


def test_threads_leave_no_trace(serve):
    """The same requests in the same order under pressure: the same words, and
    the same entries gone, whoever computed them."""
    def run(n_threads):
        server = serve(700, "--threads", str(n_threads))
        turns = {c: [] for c in range(6)}
        found = []
        for turn in range(4):
            for c, said in turns.items():
                said.append({"role": "user", "content":
                             words(("threads", c, turn), 40)})
                policy, fate = FORGETFUL[1 + c % 2], ("drop", "merge")[c // 4]
                r = server.post(CHAT, {
                    "model": "default", "messages": said, "max_tokens": 12,
                    "temperature": 0.9, "seed": turn, "kv": {
                        "policy": policy, "admission": f"{policy}+{fate}",
                        "session_tokens": 0 if c < 4 else 60}})
                assert r.status == 200, r.text
                answer = r.json["choices"][0]["message"]["content"]
                kv = r.json["kv"]
                found.append((answer, kv["retained_entries"],
                              kv["evicted_entries"], kv["merged_entries"]))
                said.append({"role": "assistant", "content": answer})
        return found, server.value("ebb_kv_eviction_score_threshold")

    one = run(1)
    assert sum(x[2] for x in one[0]) > 1000 and any(x[3] for x in one[0])
    assert run(2) == one and run(3) == one


@pytest.mark.parametrize("stream", [False, True])
def test_every_answer_tells_what_is_kept(serve, stream):
    server = serve(2048)
    # Its gates are of kind rg, which rank entries within a head only.
    assert server.get("/admin/config").json["policy"] == "trimkv"

    def ask(path, seed, **kv):
        text = words(("kept", path, seed), 60)
        body = chat(text) if path == CHAT else {"model": "default",
                                                "prompt": text}
        return kv_of(server, path, {**body, "stream": stream, "kv": kv})

    for path in (CHAT, TEXT):
        kv = ask(path, 1)
        assert kv["policy"] == "trimkv" and not kv["lossy"]
        kv = ask(path, 2, policy="exact")
        assert kv["policy"] == "exact" and not kv["lossy"]
        for policy in FORGETFUL:
            kv = ask(path, policy, policy=policy, session_tokens=32)
            assert kv["policy"] == policy and kv["lossy"]
            # Passed by at most one entry a head, between two steps.
            assert kv["retained_entries"] <= 33 * LISTS


def test_a_cap_holds_when_an_answer_ends_at_once(serve):
    server = serve(2048)
    for tokens in (0, 1, 2):
        text = words(("at once", tokens), 180)
        kv = kv_of(server, TEXT, {
            "model": "default", "prompt": text, "max_tokens": tokens,
            "kv": {"session_tokens": 50, "admission": "none"}})
        assert kv["logical_tokens"] > 100
        # A floor a head may leave less than the cap, never more.
        assert 48 * LISTS <= kv["retained_entries"] <= 50 * LISTS


def test_counters_are_the_sum_of_the_answers(serve):
    """With nothing left at rest that could be evicted later."""
    server = serve(256)
    kvs = []
    for i in range(8):
        body = chat(words(("sum", i), (40, 60, 300, 30)[i % 4]),
                    max_tokens=(8, 64)[i // 4], ignore_eos=True)
        body["kv"] = {"policy": FORGETFUL[i % 3]}
        if i % 4:
            body["kv"]["session_tokens"] = 20 + 8 * i
        if i % 2:
            body["kv"]["admission"] = "retention+merge"
        kvs.append(kv_of(server, CHAT, body))
        assert server.post("/admin/flush", "").status == 200
        assert server.value("ebb_kv_entries") == 0
    told = sum(kv["evicted_entries"] for kv in kvs)
    assert told > 0 and sum(evicted(server).values()) == told
    merged = sum(kv["merged_entries"] for kv in kvs)
    assert merged > 0
    assert server.value("ebb_kv_merged_entries_total") == merged
    assert server.value("ebb_kv_retained_share_count") == len(kvs)
    assert server.value("ebb_kv_retained_share_sum") == pytest.approx(
        sum(kv["retained_share"] for kv in kvs))
    assert server.value("ebb_kv_eviction_seconds_count") > 0


MERGING = ("merge", "lookm", "kvmerger", "weightedkv", "cam")


def test_merges_add_up_while_many_are_read(serve):
    """Prompts with every fate at once, some whole and some in chunks."""
    server = serve(384, "--watch-columns")
    kvs = []

    def ask(i):
        body = chat(words(("merge", i), (150, 260)[i % 2]), max_tokens=4,
                    ignore_eos=True)
        body["kv"] = {"policy": "trimkv",
                      "admission": f"retention+{MERGING[i % 5]}"}
        if i % 3:
            body["kv"]["session_tokens"] = 64
        kvs.append(kv_of(server, CHAT, body))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(10)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(kvs) == 10
    total = {name: sum(kv[name] for kv in kvs)
             for name in ("merged_entries", "routed_entries", "merge_seconds")}
    assert total["merged_entries"] > 0
    for name in ("merged", "routed"):
        assert (server.value(f"ebb_kv_{name}_entries_total")
                == total[f"{name}_entries"])
    assert total["routed_entries"] <= evicted(server)["admission"]
    assert server.value("ebb_kv_merge_seconds_sum") == pytest.approx(
        total["merge_seconds"], abs=1e-9)
    assert server.value("ebb_kv_merge_log_ratio_max") == pytest.approx(
        max(kv["merge_log_ratio"] for kv in kvs), rel=1e-6)


@pytest.mark.parametrize("fate", MERGING)
def test_every_fate_can_be_asked_for(serve, fate):
    server = serve(1024, "--watch-columns")
    body = chat(words("fate", 300), max_tokens=8, ignore_eos=True)
    body["kv"] = {"policy": "trimkv", "admission": f"retention+{fate}",
                  "session_tokens": 64}
    kv = kv_of(server, CHAT, body)
    assert kv["routed_entries"] > 0 and kv["merged_entries"] > 0
    assert (kv["merge_log_ratio"] > 0) == (fate == "merge")
    # The same again, word for word, and from what was compressed.
    server.post("/admin/flush", "")
    again = server.post(CHAT, body).json
    assert again["kv"]["merged_entries"] == kv["merged_entries"]


@pytest.mark.parametrize("fate", MERGING[2:])
def test_a_fate_that_is_not_watched_for_is_refused(serve, fate):
    server = serve(1024)
    kv = {"policy": "trimkv", "admission": f"retention+{fate}"}
    r = server.post(CHAT, chat("Hi.", kv=kv))
    assert r.status == 400 and r.error["param"] == "kv.admission"
    assert r.error["code"] == "unsupported_value"
    assert fate in r.error["message"]
    assert "--watch-columns" in r.error["message"]
    # What it would be needed for never happens here.
    for change in ({"policy": "exact"}, {"admission": "none"}):
        r = server.post(CHAT, chat("Hi.", kv={**kv, **change}))
        assert r.status == 200


def test_a_server_watches_for_its_own_fate(serve):
    server = serve(1024, "--admission", "retention+cam", "--merge-mean-ratio",
                   "--merge-min-cosine", "0.5", "--reposition",
                   "--per-head-sets")
    config = server.get("/admin/config").json
    assert config["admission"] == "retention+cam"
    assert config["watch_columns"] and config["merge_mean_ratio"]
    assert config["merge_min_cosine"] == 0.5
    assert config["reposition"] and config["per_head_sets"]
    kv = kv_of(server, CHAT, chat(words("own", 300), max_tokens=8,
                                  kv={"session_tokens": 64}))
    assert kv["merged_entries"] > 0


def holds(server):
    """Tokens that the whole pool holds, as a refusal tells: what was asked
    for but for the bookkeeping of the units, in whole units of 16."""
    r = server.post(CHAT, chat("Hi.", max_tokens=1000,
                               kv={"policy": "exact"}))
    assert r.status == 400 and r.error["code"] == "kv_budget_exceeded"
    return int(r.error["message"].split()[-1])


def test_exact_is_refused_with_the_numbers(serve):
    server = serve(256)
    room = holds(server)
    assert room % 16 == 0 and 0.9 * 256 <= room <= 256
    text = words("exact", 400)
    forgets = server.post(CHAT, chat(text)).json
    n = forgets["usage"]["prompt_tokens"]
    assert n > room and forgets["kv"]["lossy"]
    for kind, body in (
            ("prompt", chat(text, kv={"policy": "exact"})),
            ("answer", chat("Hi.", max_tokens=1000, kv={"policy": "none"}))):
        r = server.post(CHAT, body)
        assert r.status == 400 and r.error["code"] == "kv_budget_exceeded"
        assert str(256 * TOKEN_BYTES) in r.error["message"]
        assert str(n if kind == "prompt" else 1000) in r.error["message"]
        assert r.error["message"].endswith(f"holds {room}")
    assert server.value("ebb_admission_rejections_total",
                        reason="kv_budget") == 3
    # Without a wish for its length an answer is as long as there is room.
    body = chat("Hi.", ignore_eos=True, kv={"policy": "exact"})
    del body["max_tokens"]
    r = server.post(CHAT, body).json
    assert r["choices"][0]["finish_reason"] == "length"
    assert r["kv"]["logical_tokens"] == room and not r["kv"]["lossy"]


def test_pins_are_limited(serve):
    server = serve(512)
    messages = [{"role": "system", "content": words("pins", 300)},
                {"role": "user", "content": "Hi."}]
    r = server.post(CHAT, chat(messages, kv={"pin": ["system"]}))
    assert r.status == 400 and r.error["code"] == "pin_limit"
    assert r.error["param"] == "kv.pin"
    assert f"the limit is {holds(server) // 2}," in r.error["message"]
    messages[0]["content"] = words("pins", 60)
    assert kv_of(server, CHAT, chat(messages, kv={"pin": ["system"]}))
    r = server.post(CHAT, chat(messages, kv={"pin": ["system"],
                                             "session_tokens": 60}))
    assert r.status == 400 and r.error["code"] == "pin_limit"


def test_an_answer_that_never_forgets_is_the_same_under_every_policy(serve):
    """A budget that is not reached changes nothing."""
    server = serve(2048)
    body = chat(words("same", 100), max_tokens=30, ignore_eos=True)
    texts = set()
    for kv in ({}, {"policy": "exact"}, {"session_tokens": 1000},
               {"pin": ["user"]}, {"admission": "none"}):
        r = server.post(CHAT, {**body, "kv": kv}).json
        assert not r["kv"]["lossy"]
        texts.add(r["choices"][0]["message"]["content"])
        server.post("/admin/flush", "")
    assert len(texts) == 1


def test_a_chat_without_end(serve):
    """The context is 256; without the option the chat ends there."""
    flags = ("--max-context", "256", "--session-tokens", "100")
    for more in ((), ("--unbounded-context",)):
        server = serve(2048, *flags, *more)
        history, status = [], []
        for turn in range(8):
            history.append({"role": "user",
                            "content": words(("endless", turn), 80)})
            r = server.post(CHAT, chat(history, max_tokens=4,
                                       ignore_eos=True))
            status.append(r.status)
            if r.status != 200:
                break
            kv = adds_up(r.json["kv"])
            assert kv["retained_entries"] <= 101 * LISTS
            history.append({"role": "assistant", "content":
                            r.json["choices"][0]["message"]["content"]})
        if more:
            assert status == [200] * 8 and kv["logical_tokens"] > 3 * 256
        else:
            assert status[-1] == 400 and len(status) < 4
            assert r.error["code"] == "context_length_exceeded"
            # The chat as it was before goes on to be known.
            assert server.value("ebb_sessions", state="prefix") >= 1
            r = server.post(CHAT, chat(history[:-1], max_tokens=4,
                                       continue_final_message=True)).json
            assert r["usage"]["prompt_tokens_details"]["cached_tokens"] > 80
        # A document of many contexts at once.
        r = server.post(CHAT, chat(words("document", 1500), max_tokens=4))
        assert r.status == (200 if more else 400)
    # Who asks for what excludes it is told so.
    for kv, reason in (({"policy": "exact"}, "policy exact"),
                       ({"admission": "none"}, "admission none"),
                       ({"session_tokens": 0}, "session_tokens")):
        r = server.post(CHAT, chat(words("document", 1500), kv=kv))
        assert r.error["code"] == "context_length_exceeded"
        assert reason in r.error["message"]
        assert r.error["n_ctx"] == 256 and r.error["n_prompt_tokens"] > 1500


@pytest.mark.parametrize("policies", [*[(p,) for p in FORGETFUL],
                                      (*FORGETFUL, "exact")],
                         ids=lambda p: p[0] if len(p) == 1 else "mixed")
def test_twenty_chats_in_an_eighth_of_the_memory_they_need(serve, policies):
    """Ten turns each: all end, and the pool never passes its budget."""
    chats, turns, new = 20, 10, 8
    server = serve(880, "--max-running", "4")
    logical = [0] * chats
    times = [[] for _ in range(turns)]

    def talk(i):
        history = []
        for turn in range(turns):
            history.append({"role": "user",
                            "content": words((i, turn), 15)})
            begun = time.monotonic()
            r = server.post(CHAT, chat(
                history, max_tokens=new, ignore_eos=True,
                kv={"policy": policies[i % len(policies)]}))
            times[turn].append(time.monotonic() - begun)
            assert r.status == 200, r.text
            choice = r.json["choices"][0]
            assert choice["finish_reason"] == "length"
            assert r.json["usage"]["completion_tokens"] == new
            kv = adds_up(r.json["kv"])
            assert not (kv["lossy"] and kv["policy"] == "exact")
            logical[i] = kv["logical_tokens"]
            history.append({"role": "assistant",
                            "content": choice["message"]["content"]})

    with Watch(server):
        together([lambda i=i: talk(i) for i in range(chats)], lanes=8)
    assert sum(logical) > 8 * 880, "the pool was too large to prove anything"
    assert sum(evicted(server).values()) > 0
    assert server.value("ebb_requests_total", outcome="ok") >= chats * turns
    assert server.value("ebb_requests_total", outcome="error") == 0
    mean = [sum(t) / len(t) for t in times]
    print("seconds per turn:", [round(t, 3) for t in mean])


# The default model from here on: what was forgotten shows in what it says.

def code_word(seed):
    rng = random.Random(f"code {seed}")
    return "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou")
                   for _ in range(4)).capitalize()


def test_a_pinned_message_is_not_forgotten(launch):
    server = launch()
    word = code_word("pin")

    def says(**more):
        """Whether the word is known a long turn after it was told."""
        kv = {"policy": "streamingllm", "session_tokens": 90, **more}
        server.post("/admin/flush", "")
        history = [
            {"role": "system", "content": f"The secret code word is {word}. "
             f"When you are asked for the code word, you say {word}."},
            {"role": "user", "content": f"{words('long', 200)}."}]
        for _ in range(2):
            r = server.post(CHAT, chat(history, kv=kv))
            assert r.status == 200 and r.json["kv"]["lossy"], r.text
            text = r.json["choices"][0]["message"]["content"]
            history += [{"role": "assistant", "content": text},
                        {"role": "user",
                         "content": "What is the secret code word?"}]
        return word.lower() in text.lower()

    assert says(pin=["system"])
    assert not says()


def test_nobody_hears_another_ones_code_word(launch):
    """All ask at the same time in a pool that is far too small. Two of three
    are told a word, half of these in a message that is pinned, so that most
    know it; the third asks for a word that nobody told it."""
    server = launch("--kv-memory", "10MiB", "--max-running", "4")
    told, lock = {}, threading.Lock()

    def ask(i):
        word, kind = code_word(i), i % 3
        secret = f"The secret code word is {word}."
        messages = [{"role": "user", "content": f"{words((i, 1), 40)}. "
                     f"{secret if kind == 1 else ''} {words((i, 2), 20)}. "
                     "What is the secret code word?"}]
        if kind == 2:
            messages.insert(0, {"role": "system", "content": f"{secret} When "
                                "you are asked for the code word, you say "
                                f"{word}."})
        r = server.post(CHAT, chat(messages, max_tokens=12,
                                   kv={"pin": ["system"]}))
        assert r.status == 200, r.text
        with lock:
            told[word] = (r.json["choices"][0]["message"]["content"].lower(),
                          kind, r.json["kv"]["lossy"])

    together([lambda i=i: ask(i) for i in range(ANSWERS)], lanes=8)
    assert len(told) == ANSWERS
    foreign = [(mine, other) for mine, (text, kind, _) in told.items()
               for other in told if other.lower() in text and
               (other != mine or kind == 0)]
    assert not foreign, foreign[:3]
    assert sum(evicted(server).values()) > 0
    lossy = sum(is_lossy for _, _, is_lossy in told.values())
    knew = [sum(word.lower() in text for word, (text, kind, _) in told.items()
                if kind == k) for k in range(3)]
    print(f"of {ANSWERS} answers {lossy} had lost entries; a third each were "
          f"told no word, a word, a pinned word: {knew} knew it")
    assert lossy > ANSWERS / 3
    assert knew[2] >= ANSWERS // 16, "few knew a word: that proves little"
