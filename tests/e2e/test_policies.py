"""Every policy in the server: each has to forget on a tiny model, and says so
under its own name."""
import pytest
from ebb_server import CHAT, Server, chat, words
from tiny_model import LISTS, TOKEN_BYTES

GATED = ["dbtrimkv", "trimkv"]
FREE = ["selkv-window", "snapkv", "adakv", "pyramidkv", "tova", "r-kv",
        "keydiff", "knorm", "streamingllm", "random"]
PROMPTS = ["h2o", "expected-attention", "fastv"]
POOL = 256  # tokens


@pytest.fixture(scope="module")
def gates(tiny):
    return tiny.with_name("gates.safetensors")


@pytest.fixture
def serve(ebb, tiny):
    """serve(*flags): a server with room for POOL tokens."""
    started = []

    def serve(*flags):
        started.append(Server(ebb, tiny, "--kv-memory",
                              str(POOL * TOKEN_BYTES), *flags))
        return started[-1]

    yield serve
    for server in started:
        server.close()


def talk(server, seed, **kv):
    """A prompt larger than the pool, an answer, and another turn."""
    history = []
    for turn, n in enumerate((250, 30)):
        history.append({"role": "user", "content": words((seed, turn), n)})
        body = chat(history, max_tokens=40, ignore_eos=True)
        if kv:
            body["kv"] = kv
        r = server.post(CHAT, body)
        assert r.status == 200, r.text
        told = r.json["kv"]
        assert told["lossy"]
        assert told["full_entries"] == told["logical_tokens"] * LISTS
        assert (told["retained_entries"] + told["evicted_entries"]
                == told["full_entries"])
        assert told["bytes"] <= POOL * TOKEN_BYTES
        if "session_tokens" in kv:
            assert told["retained_entries"] <= (
                kv["session_tokens"] + 1) * LISTS
        history.append({"role": "assistant", "content":
                        r.json["choices"][0]["message"]["content"]})
        samples = server.metrics()
        used = [s.value for s in samples if s.name == "ebb_kv_bytes"]
        budget, = [s.value for s in samples if s.name == "ebb_kv_budget_bytes"]
        assert sum(used) == budget and min(used) >= 0
    return told


def test_every_policy_answers_by_its_name(serve, gates):
    server = serve("--gates", gates)
    for i, policy in enumerate(GATED + FREE):
        assert talk(server, i, policy=policy)["policy"] == policy
        ranking = {"dbtrimkv": "retention"}.get(policy, policy)
        told = talk(server, i, policy=policy, session_tokens=60,
                    admission=f"{ranking}+{'merge' if i % 2 else 'drop'}")
        assert told["policy"] == policy
    for i, ranking in enumerate(PROMPTS):
        told = talk(server, i, policy="snapkv", session_tokens=60,
                    admission=ranking + "+drop")
        assert told["policy"] == "snapkv"
    assert server.value("ebb_requests_total", outcome="error") == 0
    assert server.value("ebb_kv_merged_entries_total") > 0


def test_prompt_rankings_are_no_policies(serve):
    server = serve("--gates", "none")
    for name in PROMPTS + GATED:
        r = server.post(CHAT, chat("Hi.", kv={"policy": name}))
        assert r.status == 400 and r.error["code"] == "unsupported_value"
        assert r.error["param"] == "kv.policy" and name in r.error["message"]
    for name in ("retention", *GATED):
        r = server.post(CHAT, chat("Hi.", kv={"admission": name + "+drop"}))
        assert r.status == 400 and r.error["code"] == "unsupported_value"
        assert r.error["param"] == "kv.admission"
        assert name in r.error["message"]


@pytest.mark.parametrize("flags, policy, admission", [
    ([], "selkv-window", "selkv+drop"),
    (["--policy", "snapkv"], "snapkv", "selkv+drop"),
    (["--policy", "r-kv", "--admission", "expected-attention+merge"], "r-kv",
     "expected-attention+merge"),
    (["--policy", "pyramidkv", "--admission", "selkv-window+drop"],
     "pyramidkv", "selkv+drop"),
    (["--policy", "random", "--admission", "none"], "random", "none"),
], ids=lambda x: x if isinstance(x, str) else None)
def test_the_settings_name_what_ranks(serve, flags, policy, admission):
    server = serve("--gates", "none", *flags)
    shown = server.get("/admin/config").json
    assert shown["policy"] == policy and shown["admission"] == admission
    assert f"policy: {policy}, admission {admission}\n" in \
        server.out.read_text()
    if admission != "none":
        assert talk(server, 1)["policy"] == policy


def test_policies_share_one_pool(serve):
    """One turn of each after the other: all that is cached of the others
    makes room, and the same requests give the same answers."""
    answers = []
    for _ in range(2):
        server = serve("--gates", "none", "--deterministic")
        said = []
        for i, policy in enumerate(FREE * 2):
            r = server.post(CHAT, chat(words(i, 100), max_tokens=30,
                                       ignore_eos=True,
                                       kv={"policy": policy}))
            assert r.status == 200, r.text
            assert r.json["kv"]["policy"] == policy
            said.append(r.json["choices"][0]["message"]["content"])
        assert server.value("ebb_kv_evicted_entries_total",
                            cause="pressure") > 0
        answers.append(said)
    assert answers[0] == answers[1]
