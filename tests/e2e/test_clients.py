"""Clients that leave, that are slow, that send too much, and many of them."""
import json
import socket
import struct
import threading
import time

import pytest

from ebb_server import CHAT, ENDLESS, chat, read_all, read_until, request, \
    until


def leave(s, reset):
    if reset:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                     struct.pack("ii", 1, 0))
    s.close()


@pytest.mark.parametrize("reset", [False, True], ids=["close", "reset"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_client_that_leaves_while_it_is_answered(server, stream, reset):
    s = server.connect()
    s.sendall(request("POST", CHAT, chat(**ENDLESS, stream=stream)))
    server.wait_for(running=1)
    if stream:
        read_until(s, b'"content":"')
    before = server.value("ebb_requests_total", outcome="cancelled")
    leave(s, reset)
    server.wait_for(running=0, waiting=0)
    assert server.value("ebb_kv_bytes", state="live") == 0
    assert server.value("ebb_kv_bytes", state="reserved") == 0
    until(lambda: server.value("ebb_requests_total",
                               outcome="cancelled") == before + 1)


@pytest.mark.parametrize("reset", [False, True], ids=["close", "reset"])
def test_a_client_that_closes_after_the_last_event_was_served(server, reset):
    before = server.value("ebb_requests_total", outcome="ok", route="chat")
    gone = server.value("ebb_requests_total", outcome="cancelled")
    for _ in range(8):
        s = server.connect()
        s.sendall(request("POST", CHAT, chat(stream=True, max_tokens=2)))
        read_until(s, b"data: [DONE]\n\n")
        leave(s, reset)
    until(lambda: server.value("ebb_requests_total", outcome="ok",
                               route="chat") == before + 8)
    assert server.value("ebb_requests_total", outcome="cancelled") == gone


def test_a_client_that_leaves_during_prefill(server):
    s = server.connect()
    # Unlike anything cached, and long enough to be caught in the act.
    text = " ".join(str(n * n) for n in range(1200))
    made = server.value("ebb_generation_tokens_total")
    s.sendall(request("POST", CHAT, chat(text, max_tokens=500,
                                         ignore_eos=True)))
    server.wait_for(running=1)
    s.close()
    server.wait_for(running=0)
    assert server.value("ebb_generation_tokens_total") - made < 5


def test_a_client_that_leaves_the_queue(launch):
    server = launch("--max-running", "1")
    first, second = server.connect(), server.connect()
    first.sendall(request("POST", CHAT, chat(**ENDLESS, stream=True)))
    read_until(first, b'"content":"')
    second.sendall(request("POST", CHAT, chat("And me?")))
    server.wait_for(running=1, waiting=1)
    second.close()
    server.wait_for(running=1, waiting=0)
    read_until(first, b'"content":"')
    first.close()
    server.wait_for(running=0)


def test_a_reader_that_is_slow_gets_everything(server):
    """Others are not held up meanwhile, and no text is lost."""
    body = chat("List many words.", max_tokens=300, ignore_eos=True,
                stream=True)
    whole = server.post(CHAT, {**body, "stream": False}).json
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.settimeout(60)
    s.connect((server.host, server.port))
    s.sendall(request("POST", CHAT, body, "Connection: close"))
    time.sleep(1)
    assert server.post(CHAT, chat("Hi.")).status == 200
    server.wait_for(running=0, within=250)
    data = b""
    while piece := s.recv(2000):
        data += piece
        time.sleep(0.001)
    text = "".join(
        json.loads(line[6:])["choices"][0]["delta"].get("content", "")
        for line in data.decode().split("\n") if line.startswith("data: {"))
    assert text == whole["choices"][0]["message"]["content"]


def test_a_reader_that_never_reads_can_be_gone(server):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.connect((server.host, server.port))
    s.sendall(request("POST", CHAT, chat(**ENDLESS, stream=True)))
    server.wait_for(running=1)
    time.sleep(0.5)
    leave(s, True)
    server.wait_for(running=0)


def test_hundred_clients_at_once(server):
    answers = [None] * 100

    def ask(i):
        answers[i] = server.post(CHAT, chat(f"Say {i % 7}.", max_tokens=4))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(100)]
    for t in threads:
        t.start()
    told = 0
    while any(t.is_alive() for t in threads):
        assert server.get("/health").status == 200
        told += 1
    for t in threads:
        t.join()
    assert {a.status for a in answers} == {200}
    for i in range(7):
        texts = {a.json["choices"][0]["message"]["content"]
                 for a in answers[i::7]}
        assert len(texts) == 1
    assert told > 5, "the state is not told while the server works"


def test_many_silent_connections(server):
    silent = [server.connect() for _ in range(200)]
    try:
        assert server.post(CHAT, chat()).status == 200
    finally:
        for s in silent:
            s.close()


@pytest.mark.parametrize("body", [
    b"{", b"", b"null", b"[]", b"\xff\xfe", b'{"a":1}{"b":2}',
    b'{"model":"default","model":"default"}', b'{"a":1e999}', b"[" * 100000,
    b'{"messages":"\\u0000"}'])
def test_bad_bodies(server, body):
    r = server.post(CHAT, body)
    assert r.status == 400
    assert r.error["type"] == "invalid_request_error" and r.error["message"]


def test_a_body_of_megabytes(server):
    body = chat(max_tokens=1)
    body["blob"] = "x" * (8 << 20)
    start = time.monotonic()
    assert server.post(CHAT, body).status == 200
    assert time.monotonic() - start < 30


def test_a_prompt_of_megabytes_is_refused_with_the_least_size(server):
    r = server.post(CHAT, chat("word " * 300000, max_tokens=1))
    assert r.status == 400 and r.error["code"] == "context_length_exceeded"
    assert r.error["n_ctx"] == 8192
    # Far beyond the context it is counted no further: a lower bound.
    assert r.error["n_prompt_tokens"] == 2 * 8192 + 1
    assert "at least 16385 tokens" in r.error["message"]
    assert "maximum context length is 8192 tokens" in r.error["message"]


def test_health_answers_while_a_large_body_is_read(server):
    body = chat("word " * 1000000, max_tokens=1)
    result = []
    t = threading.Thread(target=lambda: result.append(
        server.post(CHAT, body).status))
    t.start()
    slow = 0
    while t.is_alive():
        start = time.monotonic()
        assert server.get("/health").status == 200
        slow = max(slow, time.monotonic() - start)
        time.sleep(0.02)
    t.join()
    assert result == [400] and slow < 3


def test_a_body_above_the_limit(launch):
    server = launch("--max-body", "64KiB")
    with server.connect() as s:
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                  b"Content-Length: 100000000\r\n\r\n" + b" " * 500000)
        answer = read_all(s)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"request_too_large"' in answer
    assert server.post(CHAT, chat()).status == 200


def test_a_body_that_trickles_in_ends_in_408(server):
    """Thirty seconds: what else could tell that the limit works?"""
    with server.connect() as s:
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                  b"Content-Length: 1000\r\n\r\n{")
        start, data = time.monotonic(), b""
        s.settimeout(1)
        while time.monotonic() - start < 50:
            try:
                s.sendall(b" ")
                piece = s.recv(4096)
            except TimeoutError:
                continue
            except OSError:
                break
            if not piece:
                break
            data += piece
    assert data.startswith(b"HTTP/1.1 408 "), data
    assert 25 < time.monotonic() - start < 45


def test_unusual_ways_to_ask(server):
    assert server.ask("HEAD", "/health", None).status == 200
    r = server.ask("PUT", CHAT, {})
    assert r.status == 405 and r.headers["allow"] == "POST, OPTIONS"
    r = server.post(CHAT, chat(), "Content-Encoding: zstd")
    assert r.status == 415 and r.error["param"] == "Content-Encoding"
    r = server.post(CHAT, chat(), "Content-Type: multipart/form-data")
    assert r.status == 415
    r = server.post(CHAT, chat(), "X-Ebb-Session: chat-1")
    assert r.status == 400 and r.error["code"] == "unsupported_parameter"
    r = server.post("/v1/sessions", {"id": "chat-1"})
    assert r.status == 400 and r.error["code"] == "unsupported_url"
    assert r.error["type"] == "invalid_request_error"
    r = server.post(CHAT, chat(kv={"sesion": "x"}))
    assert r.status == 400 and r.error["code"] == "unknown_parameter"
    assert r.error["param"] == "kv.sesion"
    r = server.post(CHAT, chat(tools=[{"type": "function", "function": {
        "name": "f"}}]))
    assert r.status == 400 and r.error["code"] == "unsupported_parameter"


def test_a_body_after_an_announcement(server):
    """curl waits for 100 Continue before it sends a large body."""
    body = json.dumps(chat(max_tokens=1)).encode()
    with server.connect() as s:
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                  b"Expect: 100-continue\r\nConnection: close\r\n"
                  b"Content-Length: %d\r\n\r\n" % len(body))
        assert read_until(s, b"\r\n\r\n").startswith(b"HTTP/1.1 100 ")
        s.sendall(body)
        assert read_all(s).startswith(b"HTTP/1.1 200 ")
    with server.connect() as s:
        s.sendall(b"POST /nope HTTP/1.1\r\nHost: localhost\r\n"
                  b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n")
        assert read_all(s).startswith(b"HTTP/1.1 404 ")
