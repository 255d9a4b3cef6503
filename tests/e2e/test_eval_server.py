"""`ebb eval` and the server forget alike: what the one says of a document, the
other says over HTTP.

`ebb eval --answers` compresses a document and predicts the answers to its
questions. Here the server reads the same tokens under a cap of as many entries
(kv.session_tokens), so that the same code cuts the same prompt, and is asked
for the next token at temperature 0. Each question, and each of its tokens, is
asked of a conversation that has just been cut: the server goes on cutting while
it reads and answers, to stay within the cap, and `ebb eval` does not. So the
comparison is exact up to where the server's first cut ends, which is what a
budget is about; what follows a cut later is the business of the server alone.
Prompts are read whole: a prompt that is cut between chunks has lost entries
before its end has asked for them, and keeps others.

Once more as a client does it: the document is a chat, which the server gets as
messages, and its next turn asks the question.
"""
import json
import re
import subprocess

import pytest
import tiny_model
from ebb_server import Server

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
CONTEXT, BUDGET = 512, 0.25
# Not the rankings that ask every query of a prompt (h2o, expected-attention):
# such a prompt is always computed from its first token on, so no second request
# can go on from what was cut.
POLICIES = ["streamingllm", "streamingllm+merge", "trimkv", "trimkv+merge",
            "dbtrimkv", "dbtrimkv+merge", "selkv-window", "selkv-window+merge",
            "snapkv", "adakv", "pyramidkv", "tova", "r-kv", "keydiff+merge",
            "knorm", "random", "fastv", "snapkv+lookm", "snapkv+cam",
            "dbtrimkv+cam", "keydiff+weightedkv", "adakv+kvmerger"]
PROMPTS_ONLY = ["fastv"]


def rules(name, entries):
    """The kv object for a policy of `ebb eval`."""
    if name == "full":
        return {"policy": "exact", "admission": "none"}
    policy, _, fate = name.partition("+")
    policy, _, _ = policy.partition(":")  # its settings are the server's
    return {"policy": "streamingllm" if policy in PROMPTS_ONLY else policy,
            "admission": f"{policy}+{fate or 'drop'}",
            "session_tokens": int(entries)}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Sentences that no question is about."""
    words = ("the tide was slow and grey over sand when a wind had risen from "
             "harbour walls where boats lay tied with rope under old "
             "cranes").split()
    path = tmp_path_factory.mktemp("eval") / "text.txt"
    path.write_text(" ".join(
        " ".join(words[(i * i + 7 * k) % len(words)] for k in range(9)) + "."
        for i in range(400)))
    return path


def answers(ebb, out, *flags):
    """(documents, cells) of a run of ebb eval."""
    r = subprocess.run(
        [ebb, "eval", "--answers", out, "--context", str(CONTEXT), "--budget",
         str(BUDGET), *flags], capture_output=True, text=True, timeout=390)
    assert r.returncode == 0, r.stderr
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    return ([x for x in lines if "prompt" in x],
            [x for x in lines if "answers" in x])


def ask(server, ids, kv, n=1):
    """The answer of n tokens to these tokens."""
    r = server.post(TEXT, {"model": "default", "prompt": ids, "max_tokens": n,
                           "temperature": 0, "kv": kv})
    assert r.status == 200, r.text
    return r.json


def said_by(server, document, cell, i):
    """The most probable tokens of answer i, each after the right ones."""
    ids = document["prompt"]["ids"]
    kv = rules(cell["policy"], cell["entries"])
    given = document["questions"][i]["given"]["ids"]
    right = document["questions"][i]["right"]["ids"]
    said = ""
    for k in range(len(right)):
        assert server.post("/admin/flush", {}).status == 200
        # Keys are turned before the second token of an answer is computed;
        # for its room one entry of a list more leaves.
        state = ask(server, ids, kv, 1 + ("reposition" in cell["policy"]))["kv"]
        assert state["lossy"] == (kv["policy"] != "exact"), state
        assert (state["merged_entries"] > 0) == ("+" in cell["policy"])
        answer = ask(server, ids + given + right[:k], kv)
        # It went on from the conversation that was cut.
        assert answer["usage"]["prompt_tokens_details"][
            "cached_tokens"] == len(ids)
        said += answer["choices"][0]["text"]
    return said


def check(server, documents, cells, questions):
    for document, cell in ((d, c) for d in documents for c in cells
                           if c["doc"] == d["doc"]):
        for i in questions:
            assert said_by(server, document, cell, i) == \
                cell["answers"][i]["said"]["text"], (cell["policy"], i)


def test_a_tiny_model(ebb, small_model, text, tmp_path):
    """Whose nonsense depends on every entry, under every policy that the
    server has."""
    tiny = tiny_model.write(tmp_path / "tiny.gguf", small_model)
    gates = tiny_model.write_gates(tmp_path / "gates.safetensors")
    documents, cells = answers(
        ebb, tmp_path / "answers.jsonl", "--model", tiny, "--gates", gates,
        "--text", text, "--docs", "1", "--tasks", "B2",
        "--policy", ",".join(POLICIES + ["keydiff"]))
    assert len(cells) == len(POLICIES) + 2  # full always comes, too
    differ = {json.dumps(c["answers"]) for c in cells}
    assert len(differ) == len(cells) - 1  # with one head adakv is snapkv
    server = Server(ebb, tiny, "--gates", gates, "--watch-columns")
    try:
        check(server, documents, cells, (5,))
    finally:
        server.close()


def test_a_real_model(ebb, small_model, text, tmp_path):
    documents, cells = answers(
        ebb, tmp_path / "answers.jsonl", "--model", small_model,
        "--text", text, "--docs", "1", "--tasks", "B2",
        "--policy", "full,dbtrimkv,dbtrimkv+merge")
    server = Server(ebb, small_model)
    try:
        check(server, documents, cells, (1,))
    finally:
        server.close()


@pytest.mark.parametrize("flags, policy, questions", [
    (["--per-head-sets"], "selkv-window:per-head-sets=on", (0, 1, 2)),
    (["--reposition"], "selkv-window:reposition=on", (0, 1))])
def test_settings_of_policies(ebb, small_model, text, tmp_path, flags, policy,
                              questions):
    documents, cells = answers(
        ebb, tmp_path / "answers.jsonl", "--model", small_model,
        "--text", text, "--docs", "1", "--tasks", "B2",
        "--policy", f"selkv-window,{policy}")
    plain, [cell] = ([c for c in cells if c["policy"] == "selkv-window"],
                     [c for c in cells if c["policy"] == policy])
    assert [plain[0]["answers"][i]["said"] for i in questions] != \
        [cell["answers"][i]["said"] for i in questions]
    server = Server(ebb, small_model, *flags)
    try:
        check(server, documents, [cell], questions)
    finally:
        server.close()


def messages(text):
    """What the default model's template has made of them: a role on a line of
    its own before each (the marks around it are no text). The last is open."""
    parts = re.split(r"^(system|user|assistant)\n", text, flags=re.M)[1:]
    turns = [{"role": role, "content": content.removesuffix("\n")}
             for role, content in zip(parts[::2], parts[1::2])]
    return turns


def chat(server, turns, kv):
    r = server.post(CHAT, {"model": "default", "messages": turns,
                           "max_tokens": 1, "temperature": 0, "kv": kv,
                           "continue_final_message": True})
    assert r.status == 200, r.text
    return r.json


def test_turns_of_a_chat(ebb, small_model, text, tmp_path):
    """The first token of each answer: the one that no later cut precedes."""
    [document], cells = answers(
        ebb, tmp_path / "answers.jsonl", "--model", small_model,
        "--text", text, "--docs", "1", "--tasks", "E1", "--policy",
        "full,dbtrimkv,dbtrimkv+merge,selkv-window+merge,snapkv")
    told, n_told = document["prompt"]["text"], len(document["prompt"]["ids"])
    assert len(messages(told)) > 16 and messages(told)[-1]["content"] == ""
    said = {}
    server = Server(ebb, small_model)
    try:
        for cell in cells:
            kv = rules(cell["policy"], cell["entries"])
            for i, question in enumerate(document["questions"][:4]):
                assert server.post("/admin/flush", {}).status == 200
                first = chat(server, messages(told), kv)
                assert first["usage"]["prompt_tokens"] == n_told
                assert first["kv"]["lossy"] == (kv["policy"] != "exact")
                asked = messages(told + question["given"]["text"])
                assert [m["role"] for m in asked[-2:]] == ["user", "assistant"]
                answer = chat(server, asked, kv)
                assert answer["usage"]["prompt_tokens_details"][
                    "cached_tokens"] == n_told
                token = answer["choices"][0]["message"]["content"]
                wanted = cell["answers"][i]["said"]["text"]
                assert token and wanted.startswith(token), (cell["policy"], i)
                said.setdefault(cell["policy"], []).append(token)
    finally:
        server.close()
    assert len({tuple(x) for x in said.values()}) > 2, said
