"""deploy/fetch_texts.py on packages made here: no network."""
import gzip
import importlib.util
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location(
    "fetch_texts", ROOT / "deploy" / "fetch_texts.py")
texts = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(texts)

needs_dpkg = pytest.mark.skipif(not shutil.which("dpkg-deb"),
                                reason="no dpkg-deb here")


def r_strings(lines):
    """An R character vector as saveRDS writes it, version 3."""
    out = b"X\n" + struct.pack(">iii", 3, 0x30500, 0x30500)
    out += struct.pack(">i", 5) + b"UTF-8"
    out += struct.pack(">ii", 16, len(lines))
    for line in lines:
        if line is None:
            out += struct.pack(">ii", 9, -1)
        else:
            data = line.encode("latin-1")
            out += struct.pack(">ii", 0x40009, len(data)) + data
    return out


def write(folder, name, data):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def test_a_novel_is_found_among_the_records(tmp_path):
    data = b""
    for title in ("EMMA", "PERSUASION"):
        lines = [title, "", "by", "", "It was", "late.", "", None, "The end"]
        stream = r_strings(lines)
        data += struct.pack(">I", len(stream)) + zlib.compress(stream)
    write(tmp_path, "a/Rdata.rdb", data)
    row = {"member": "a/*.rdb", "select": "Persuasion"}
    text, = texts.read_austen(tmp_path, row)
    assert text.startswith("PERSUASION\n\nby\n\nIt was late.\n\nThe end")
    with pytest.raises(texts.Failed, match="Lady Susan"):
        texts.read_austen(tmp_path, {**row, "select": "Lady Susan"})


def test_pages_lose_tags_and_navigation():
    page = (b"<html><head><title>T</title><style>x{}</style></head><body>"
            b"<div class='navheader'><a>Prev</a><div>Up</div></div>"
            b"<h1>One</h1><p>Two &amp;\n three<br>four <b>five</b></p>"
            b"<pre>  a\n   b</pre><script>var x;</script></body></html>")
    assert texts.text_of_html(page) == \
        "One\n\nTwo & three\nfour five\n\na\nb\n"
    page = b"<meta content='text/html; charset=ISO-8859-1'><p>caf\xe9</p>"
    assert texts.text_of_html(page) == "café\n"


def test_sword_blocks_become_text(tmp_path):
    blocks = [b"<div>In the &lt;beginning&gt;</div>", b"<p/>Second<lb/>line"]
    data = index = b""
    for block in blocks:
        packed = zlib.compress(block)
        index += struct.pack("<III", len(data), len(packed), len(block))
        data += packed
    write(tmp_path, "m/ot.bzz", data)
    write(tmp_path, "m/ot.bzs", index)
    parts = texts.read_sword(tmp_path, {"member": "m/*.bzs"})
    assert parts == ["In the <beginning>\n", "Second\nline\n"]


def test_plain_text_may_be_compressed(tmp_path):
    write(tmp_path, "t/a.txt.gz", gzip.compress(b"   One\n\n\n\n  two  \n"))
    assert texts.read_text(tmp_path, {"member": "t/*"}) == ["One\n\ntwo\n"]


def test_the_rest_begins_where_the_first_part_ends():
    parts = ["a" * 10 * n for n in range(1, 11)]
    first, rest = (texts.select(parts, w) for w in ("first 90%", "last 10%"))
    assert first + rest == parts
    assert 0.75 < sum(map(len, first)) / sum(map(len, parts)) <= 0.9
    assert texts.select(parts, "all") == parts


def test_sections_come_in_the_order_of_their_numbers(tmp_path):
    for n in (10, 2, 1):
        write(tmp_path, f"h/sec{n}.html", b"x")
    assert [p.name for p in texts.members(tmp_path, "h/*.html")] == \
        ["sec1.html", "sec2.html", "sec10.html"]


def test_the_table_is_whole_and_training_sees_no_held_out_text():
    rows = texts.table()
    assert {r["use"] for r in rows} == set(texts.USES)
    assert len({r["name"] for r in rows}) == len(rows)
    for r in rows:
        assert len(r["sha256"]) == 64 and r["form"] in texts.FORMS
        assert r["licence"]
    held_out = {r["name"] for r in rows if r["use"] == "test"}
    assert {"persuasion", "northanger-abbey"} <= held_out
    # What train and test take from one package must be disjoint parts.
    train = {(r["package"], r["member"], r["select"])
             for r in rows if r["use"] == "train"}
    test = {(r["package"], r["member"], r["select"])
            for r in rows if r["use"] != "train"}
    assert not train & test


@needs_dpkg
def test_a_text_is_made_once_and_a_wrong_package_refused(tmp_path,
                                                         monkeypatch, capsys):
    root = tmp_path / "root"
    write(root, "DEBIAN/control", b"Package: tale\nVersion: 1\n"
          b"Architecture: all\nMaintainer: n <n@example>\nDescription: t\n")
    write(root, "usr/share/tale/a.txt", b"Once upon a time.\n")
    folder = tmp_path / "cache" / "ebb" / "texts"
    packages = folder / "packages"
    packages.mkdir(parents=True)
    deb = packages / "tale_1_all.deb"
    subprocess.run(["dpkg-deb", "--build", root, deb], check=True,
                   capture_output=True)
    row = {"name": "tale", "use": "train", "package": "tale", "version": "1",
           "sha256": texts.sha256_of(deb), "form": "text",
           "member": "usr/share/tale/*", "select": "all", "licence": "none"}
    path = texts.make(row, folder)
    assert path.read_text() == "Once upon a time.\n"
    deb.unlink()
    assert texts.make(row, folder) == path  # no package needed
    monkeypatch.setattr(texts.subprocess, "run", lambda *a, **k:
                        subprocess.CompletedProcess(a, 100, "", "E: no\n"))
    path.write_text("changed")
    with pytest.raises(texts.Failed, match="E: no"):
        texts.make(row, folder)
    deb.write_bytes(b"something else")
    with pytest.raises(texts.Failed):
        texts.make(row, folder)
    assert not deb.exists()


def test_an_unknown_use_is_named(monkeypatch):
    monkeypatch.setattr(texts.sys, "argv", ["fetch_texts.py", "tain"])
    with pytest.raises(SystemExit, match="no use 'tain'"):
        texts.main()
