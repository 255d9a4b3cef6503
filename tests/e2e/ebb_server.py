"""Starting the program, and talking to it over bare sockets."""
import json
import random
import re
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import openai
import prometheus_client.parser

CHAT = "/v1/chat/completions"
# What a test waits for comes soon or never: so long even where a machine stalls
# or runs everything tenfold slower.
PATIENCE_S = 120
WORDS = """river stone bread winter letter bridge market evening garden music
harbour apple window journey candle silver mountain horse paper summer""".split()


def until(holds, within=PATIENCE_S, told=lambda: "it does not come true"):
    """Waits until holds() is true."""
    end = time.monotonic() + within
    while not holds():
        assert time.monotonic() < end, told()
        time.sleep(0.02)


class Server:
    """A running `ebb serve` on a free port."""

    def __init__(self, program, model, *flags):
        self.folder = tempfile.TemporaryDirectory(prefix="ebb-e2e-")
        folder = Path(self.folder.name)
        self.out, self.err = folder / "stdout", folder / "stderr"
        flags = list(flags)
        if "--kv-memory" not in flags:
            flags += ["--kv-memory", "256MiB"]
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen(
                [program, "serve", "--port", "0", "--model", model, *flags],
                stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        until(lambda: self.process.poll() is not None or self.address(),
              told=lambda: "it does not come up")
        assert self.process.poll() is None, self.log()
        self.host, self.port = self.address()
        self.url = f"http://{self.host}:{self.port}"

    def address(self):
        """Host and port, once it has told them."""
        found = re.search(r"^listening on http://(\S+):(\d+)$",
                          self.out.read_text(), re.M)
        return found and (found.group(1), int(found.group(2)))

    def log(self):
        return self.err.read_text(errors="replace")

    def client(self, **more):
        return openai.OpenAI(base_url=self.url + "/v1", api_key="none",
                             max_retries=0, timeout=120, **more)

    def connect(self, timeout=300):
        return socket.create_connection((self.host, self.port), timeout)

    def get(self, path, *headers):
        return self.ask("GET", path, None, *headers)

    def post(self, path, body, *headers):
        return self.ask("POST", path, body, *headers)

    def ask(self, method, path, body, *headers):
        with self.connect() as s:
            s.sendall(request(method, path, body, "Connection: close",
                              *headers))
            return Answer(read_all(s))

    def metrics(self):
        families = prometheus_client.parser.text_string_to_metric_families(
            self.get("/metrics").text)
        return [s for f in families for s in f.samples]

    def value(self, name, **labels):
        found = [s.value for s in self.metrics() if s.name == name and
                 labels.items() <= s.labels.items()]
        assert found, f"no {name} {labels}"
        return sum(found)

    def wait_for(self, within=PATIENCE_S, **values):
        """Waits until metrics have these values, e.g. running=0."""
        def now():
            return {k: self.value("ebb_requests_" + k) for k in values}

        until(lambda: now() == values, within,
              lambda: f"{now()}, wanted {values}")

    def stop(self, *signals):
        """The exit status after these signals (SIGTERM by default)."""
        for s in signals or (signal.SIGTERM,):
            self.process.send_signal(s)
            time.sleep(0.1)
        try:
            return self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait()

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.folder.cleanup()


def request(method, path, body=None, *headers):
    """The bytes of a request; body is an object, text or bytes."""
    if body is not None and not isinstance(body, (bytes, str)):
        body = json.dumps(body)
    if isinstance(body, str):
        body = body.encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b"")


def read_all(s):
    data = b""
    while piece := s.recv(65536):
        data += piece
    return data


def read_until(s, mark):
    data = b""
    while mark not in data:
        piece = s.recv(4096)
        assert piece, f"closed before {mark!r}: {data[-300:]!r}"
        data += piece
    return data


class Answer:
    def __init__(self, data):
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        self.status = int(first.split()[1])
        self.headers = {k.lower(): v.strip() for k, _, v in
                        (line.partition(":") for line in lines)}
        if self.headers.get("transfer-encoding") == "chunked":
            body = unchunk(body)
        self.body = body

    text = property(lambda self: self.body.decode())
    json = property(lambda self: json.loads(self.body))
    error = property(lambda self: self.json["error"])


def unchunk(data):
    out = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        out += data[:int(size, 16)]
        data = data[int(size, 16) + 2:]
    return out


def chat(text="Say hi.", **fields):
    messages = text if isinstance(text, list) else [
        {"role": "user", "content": text}]
    return {"model": "default", "messages": messages, "temperature": 0,
            "max_tokens": 16, **fields}


def words(seed, n):
    rng = random.Random(str(seed))
    return " ".join(rng.choice(WORDS) for _ in range(n))


ENDLESS = {"text": "Count from one to a thousand in words.",
           "max_tokens": 6000, "ignore_eos": True}
