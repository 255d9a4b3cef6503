"""What answers say: the official client, reuse, equality, numbers."""
import json
import threading
import time

import pytest
from ebb_server import CHAT, chat, until

STORY = "Once upon a time there was a small village by the sea. " * 6


def test_the_official_client_chats(server):
    client = server.client()
    answer = client.chat.completions.create(**chat("Name a colour."))
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == (answer.usage.prompt_tokens +
                                         answer.usage.completion_tokens)
    assert [m.id for m in client.models.list()][1] == "default"
    assert client.models.retrieve("default").id == "default"


def test_the_official_client_streams(server):
    client = server.client()
    whole = client.chat.completions.create(**chat("Name two birds."))
    with client.chat.completions.stream(
            **chat("Name two birds."),
            stream_options={"include_usage": True}) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    assert len(events) > 3
    assert (final.choices[0].message.content ==
            whole.choices[0].message.content)
    assert final.usage.completion_tokens == whole.usage.completion_tokens


def test_the_official_client_completes_text(server):
    client = server.client()
    args = {"model": "default", "prompt": "One two three four",
            "temperature": 0, "max_tokens": 8}
    whole = client.completions.create(**args).choices[0].text
    parts = [c.choices[0].text
             for c in client.completions.create(**args, stream=True)]
    assert whole and "".join(parts) == whole


def shape(server):
    info = [s for s in server.metrics() if s.name == "ebb_model_info"][0]
    return int(info.labels["layers"]) * int(info.labels["kv_heads"])


def check_kv(kv, logical, lists):
    assert kv["session"] is None
    assert kv["logical_tokens"] == logical
    assert kv["full_entries"] == kv["retained_entries"] == logical * lists
    assert kv["evicted_entries"] == kv["merged_entries"] == 0
    assert kv["retained_share"] == 1 and kv["lossy"] is False
    assert kv["bytes"] > 0


def test_the_kv_object_counts_what_is_stored(server):
    """The last token of an answer is never stored: nothing follows it."""
    lists = shape(server)
    r = server.post(CHAT, chat(STORY, max_tokens=5, ignore_eos=True)).json
    check_kv(r["kv"], r["usage"]["total_tokens"] - 1, lists)
    events = [json.loads(line[6:]) for line in server.post(
        CHAT, chat(STORY, max_tokens=5, ignore_eos=True,
                   stream=True)).text.split("\n")
        if line.startswith("data: {")]
    carrying = [e for e in events if "kv" in e]
    assert len(carrying) == 1
    assert carrying[0]["choices"][0]["finish_reason"] == "length"
    check_kv(carrying[0]["kv"], r["usage"]["total_tokens"] - 1, lists)


def test_a_beginning_that_is_cached_is_not_computed_again(launch):
    server = launch()
    ask = [{"role": "system", "content": STORY},
           {"role": "user", "content": "What is it about?"}]
    first = server.post(CHAT, chat(ask)).json
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    reply = first["choices"][0]["message"]["content"]
    prefill = server.value("ebb_prefill_tokens_total")
    second = server.post(CHAT, chat(ask + [
        {"role": "assistant", "content": reply},
        {"role": "user", "content": "Thanks. Say bye."}])).json
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= first["usage"]["total_tokens"] - 8
    assert cached < second["usage"]["prompt_tokens"]
    computed = server.value("ebb_prefill_tokens_total") - prefill
    assert computed == second["usage"]["prompt_tokens"] - cached
    assert server.value("ebb_cached_tokens_total") == cached


def test_cold_warm_and_crowded_answers_are_the_same(launch):
    prompts = [f"Tell me a short story about the number {n}." for n in
               (3, 14, 15, 92, 65, 35)]
    bodies = [chat(p, max_tokens=40) for p in prompts]

    def text(server, body):
        r = server.post(CHAT, body)
        assert r.status == 200, r.text
        return r.json["choices"][0]["message"]["content"]

    server = launch()
    cold = [text(server, b) for b in bodies]
    warm = [text(server, b) for b in bodies]
    crowded = [None] * len(bodies)

    def ask(i, where):
        crowded[i] = text(where, bodies[i])

    for where in (server, launch("--threads", "1", "--max-running", "3")):
        threads = [threading.Thread(target=ask, args=(i, where))
                   for i in range(len(bodies))]
        for t in threads:
            t.start()
            time.sleep(0.03)
        for t in threads:
            t.join()
        assert crowded == cold
    assert warm == cold


def test_metrics_add_up(launch):
    server = launch()
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "cached": 0}
    for i in range(4):
        u = server.post(CHAT, chat(STORY, max_tokens=3 + i)).json["usage"]
        usage["prompt_tokens"] += u["prompt_tokens"]
        usage["completion_tokens"] += u["completion_tokens"]
        usage["cached"] += u["prompt_tokens_details"]["cached_tokens"]
    server.post(CHAT, "{")
    server.post(CHAT, chat(temperature=7))
    count = server.value
    assert count("ebb_prompt_tokens_total") == usage["prompt_tokens"]
    assert count("ebb_generation_tokens_total") == usage["completion_tokens"]
    assert count("ebb_cached_tokens_total") == usage["cached"]
    assert count("ebb_prefill_tokens_total") == (usage["prompt_tokens"] -
                                                 usage["cached"])
    assert count("ebb_requests_total", route="chat", outcome="ok") == 4
    assert count("ebb_requests_total", route="chat",
                 outcome="bad_request") == 2
    assert count("ebb_request_seconds_count") == 4
    assert count("ebb_time_to_first_token_seconds_count") == 4
    assert count("ebb_kv_bytes") == count("ebb_kv_budget_bytes") == 256 << 20
    assert count("ebb_kv_bytes", state="live") == 0
    assert count("ebb_step_tokens_total", kind="prefill") == count(
        "ebb_prefill_tokens_total")
    assert count("ebb_engine_up") == 1


def test_metrics_in_both_formats(server):
    plain = server.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=0")
    from prometheus_client.openmetrics import parser
    r = server.get("/metrics", "Accept: application/openmetrics-text")
    assert r.headers["content-type"].startswith("application/openmetrics-text")
    names = {f.name for f in parser.text_string_to_metric_families(r.text)}
    assert {"ebb_requests", "ebb_kv_bytes", "ebb_request_seconds"} <= names


def test_a_message_can_be_continued(server):
    messages = [{"role": "user", "content": "Count to five."},
                {"role": "assistant", "content": "One, two, three,"}]
    new = server.post(CHAT, chat(messages)).json
    more = server.post(CHAT, chat(messages, continue_final_message=True)).json
    assert more["usage"]["prompt_tokens"] < new["usage"]["prompt_tokens"]
    assert "four" in more["choices"][0]["message"]["content"].lower()


def test_log_lines_tell_each_request(launch):
    server = launch("--log-format", "json")
    r = server.post(CHAT, chat(STORY, max_tokens=6, ignore_eos=True),
                    "X-Request-ID: find-me-1")
    assert r.headers["x-request-id"] == "find-me-1"
    server.post(CHAT, chat(temperature=9), "X-Request-ID: find-me-2")
    kv = server.post(CHAT, chat(STORY, kv={"policy": "streamingllm",
                                           "session_tokens": 40}),
                     "X-Request-ID: find-me-3").json["kv"]
    until(lambda: server.log().count("find-me") == 3)
    lines = {}
    for line in server.log().splitlines():
        record = json.loads(line)
        lines[record.get("id")] = record
    good, bad, lossy = (lines[f"find-me-{i}"] for i in (1, 2, 3))
    assert good["tenant"] == "default" and good["outcome"] == "ok"
    assert good["prompt_tokens"] == r.json["usage"]["prompt_tokens"]
    assert good["generated_tokens"] == 6 and good["cached_tokens"] == 0
    assert good["evicted_entries"] == 0 and good["retained_share"] == 1
    assert good["ttft_ms"] > 0 and good["tokens_per_s"] > 0
    assert bad["outcome"] == "bad_request" and "temperature" in bad["error"]
    assert kv["evicted_entries"] > 0 and 0 < kv["retained_share"] < 1
    assert lossy["evicted_entries"] == kv["evicted_entries"]
    assert lossy["retained_share"] == pytest.approx(kv["retained_share"],
                                                    rel=1e-3)


def test_the_log_says_what_was_wrong_on_every_route(launch):
    server = launch("--log-format", "json")
    for path in ("/v1/models/gone", "/nope"):
        assert server.get(path, "X-Request-ID: lost").status == 404
    until(lambda: server.log().count("lost") == 2)
    errors = [json.loads(line)["error"] for line in server.log().splitlines()
              if "lost" in line]
    assert "`gone` does not exist" in errors[0] and "/nope" in errors[1]


def test_text_log_lines_are_one_line_each(launch):
    server = launch()
    server.post(CHAT, chat(), "X-Request-ID: plain-1")
    until(lambda: "plain-1" in server.log())
    (line,) = [x for x in server.log().splitlines() if "plain-1" in x]
    for word in ("tenant=default", "outcome=ok", "prompt_tokens=",
                 "cached_tokens=0", "generated_tokens=", "ttft_ms=",
                 "tokens_per_s="):
        assert word in line
