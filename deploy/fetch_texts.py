#!/usr/bin/env python3
"""Puts the texts that gates learn from into the user's cache folder.

    deploy/fetch_texts.py [USE...]    train, dev or test; "train" if none

Rows of deploy/texts.tsv: each text is made from one Debian package of a given
version, which apt-get fetches and whose SHA-256 is checked. Prints the paths
of the texts, one a line; progress goes to stderr. What is there already is not
made again. Nothing of it is part of the repository. Training must see "train"
only: "dev" is for tuning, "test" for the evaluation.

Needs apt-get and dpkg-deb; Python's standard library only.
"""
import csv
import fnmatch
import gzip
import hashlib
import html.parser
import os
import re
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
USES = ("train", "dev", "test")
# What how-the-text-is-made depends on: another number makes all texts anew.
FORM_VERSION = 1


class Failed(Exception):
    """A step that failed: what, and how to mend it."""

    def __init__(self, step, why, mend):
        super().__init__(f"texts: step '{step}' failed: {why}\ntexts: {mend}")


def say(text):
    print(f"texts: {text}", file=sys.stderr, flush=True)


def cache_folder():
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "ebb" / "texts"


def table():
    with open(HERE / "texts.tsv", newline="") as f:
        return list(csv.DictReader(f, delimiter="\t"))


# ---------------------------------------------------------------- packages

def sha256_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def fetch_package(row, folder):
    """The .deb of a row, checked."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = f"{row['package']}={row['version']}"
    for path in folder.glob(f"{row['package']}_*.deb"):
        if sha256_of(path) == row["sha256"]:
            return path
        path.unlink()
    say(f"fetching {wanted}")
    run = subprocess.run(["apt-get", "download", "-q", wanted], cwd=folder,
                         stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
    found = list(folder.glob(f"{row['package']}_*.deb"))
    if run.returncode != 0 or not found:
        why = (run.stderr or "").strip().splitlines()
        raise Failed("fetch", f"apt-get download {wanted}: "
                     f"{why[-1] if why else 'no file'}",
                     "check the network, run apt-get update, and start again")
    if sha256_of(found[0]) != row["sha256"]:
        raise Failed("check", f"{found[0].name} is not the expected file",
                     f"delete {found[0]} and start again")
    return found[0]


def unpack(deb, folder):
    run = subprocess.run(["dpkg-deb", "-x", str(deb), folder],
                         stderr=subprocess.PIPE, text=True)
    if run.returncode != 0:
        raise Failed("unpack", run.stderr.strip(), f"delete {deb}")


def members(folder, pattern):
    """The files of a package that match, in an order that reads well: secA2
    before secA10."""
    def key(name):
        return [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", name)]
    names = [str(p.relative_to(folder)) for p in Path(folder).rglob("*")
             if p.is_file()]
    found = sorted(fnmatch.filter(names, pattern), key=key)
    if not found:
        raise Failed("unpack", f"no file like {pattern} in the package",
                     "the row of deploy/texts.tsv is wrong")
    return [Path(folder) / name for name in found]


# ------------------------------------------------------------------- forms

class TextOf(html.parser.HTMLParser):
    """The words of a page: one line a paragraph, nothing of navigation."""

    SKIP = {"script", "style", "head", "nav", "footer", "header"}
    BLOCKS = {"p", "div", "br", "li", "ul", "ol", "dl", "dt", "dd", "tr", "hr",
              "table", "pre", "blockquote", "h1", "h2", "h3", "h4", "h5",
              "h6", "section"}
    NAVIGATION = re.compile(r"nav|footer|header|toc|docnav", re.I)
    VOID = {"br", "hr", "img", "input", "link", "meta", "col", "area", "wbr"}

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.out, self.skipped, self.pre = [], [], 0

    def handle_starttag(self, tag, attrs):
        if tag in self.VOID and tag not in self.BLOCKS:
            return
        if tag in self.BLOCKS:
            self.out.append("\n")
        if tag in self.VOID:
            return
        kind = " ".join(v or "" for k, v in attrs if k in ("class", "id"))
        if self.skipped:
            if tag == self.skipped[-1]:
                self.skipped.append(tag)
        elif tag in self.SKIP or (tag in ("div", "table", "ul") and
                                  self.NAVIGATION.search(kind)):
            self.skipped.append(tag)
        self.pre += tag == "pre"

    def handle_endtag(self, tag):
        if self.skipped and tag == self.skipped[-1]:
            self.skipped.pop()
        if tag in self.BLOCKS:
            self.out.append("\n")
        self.pre -= tag == "pre" and self.pre > 0

    def handle_data(self, data):
        if self.skipped:
            return
        self.out.append(data if self.pre else re.sub(r"\s+", " ", data))


def tidy(text):
    """No spaces at line ends, no more than one empty line."""
    text = text.replace("\xa0", " ").replace("\r", "")
    lines = [line.rstrip() for line in text.split("\n")]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def text_of_html(data):
    parser = TextOf()
    head = data[:2000].lower()
    latin = b"charset=iso-8859-1" in head or b"charset=\"iso-8859-1" in head
    parser.feed(data.decode("latin-1" if latin else "utf-8", "replace"))
    parser.close()
    lines = "".join(parser.out).split("\n")
    return tidy("\n".join(line.strip(" ") for line in lines))


def read_html(folder, row):
    return [text_of_html(p.read_bytes())
            for p in members(folder, row["member"])]


def read_text(folder, row):
    out = []
    for p in members(folder, row["member"]):
        data = p.read_bytes()
        if p.suffix == ".gz":
            data = gzip.decompress(data)
        # Lines of a paragraph are joined: a model sees few hard breaks.
        text = tidy(data.decode("utf-8", "replace"))
        out.append(tidy("\n".join(re.sub(r"^ {1,4}(?=\S)", "", line)
                                  for line in text.split("\n"))))
    return out


def strings_of_r(data):
    """The strings of a serialised R character vector (XDR)."""
    if data[:2] != b"X\n":
        return None
    version, _, _ = struct.unpack_from(">iii", data, 2)
    at = 14
    if version == 3:
        (n,) = struct.unpack_from(">i", data, at)
        at += 4 + n
    flags, count = struct.unpack_from(">ii", data, at)
    if flags & 0xFF != 16:
        return None
    at += 8
    out = []
    for _ in range(count):
        _, n = struct.unpack_from(">ii", data, at)
        at += 8
        out.append("" if n < 0 else data[at:at + n].decode("latin-1"))
        at += max(n, 0)
    return out


def read_austen(folder, row):
    """One novel: records are a length of four bytes and a zlib stream."""
    data = members(folder, row["member"])[0].read_bytes()
    at = 0
    while at + 4 < len(data):
        stream = zlib.decompressobj()
        lines = strings_of_r(stream.decompress(data[at + 4:]))
        at = len(data) - len(stream.unused_data)
        title = " ".join(lines[:3]).upper() if lines else ""
        if row["select"].upper() in title:
            return ["\n".join(paragraphs(lines)) + "\n"]
    raise Failed("read", f"no novel called {row['select']}",
                 "the row of deploy/texts.tsv is wrong")


def paragraphs(lines):
    """Hard line ends inside a paragraph become spaces."""
    whole = []
    for line in lines + [""]:
        if line.strip():
            whole.append(line.strip())
        elif whole:
            yield " ".join(whole) + "\n"
            whole = []


def read_sword(folder, row):
    """A compressed module: the index has (offset, bytes, unpacked bytes) of
    each zlib block."""
    out = []
    for index in members(folder, row["member"]):
        blocks = index.with_suffix(index.suffix[:-1] + "z").read_bytes()
        entries = index.read_bytes()
        for at in range(0, len(entries) - 11, 12):
            start, size, _ = struct.unpack_from("<III", entries, at)
            if size:
                data = zlib.decompress(blocks[start:start + size])
                text = re.sub(rb"</?(?:p|div|lb|l|title|br)\b[^>]*>", b"\n",
                              data, flags=re.I)
                text = re.sub(rb"<[^>]*>", b"", text)
                out.append(tidy(html.unescape(text.decode("utf-8",
                                                          "replace"))))
    return out


FORMS = {"html": read_html, "text": read_text, "austen": read_austen,
         "sword": read_sword}


def select(parts, what):
    """Whole documents up to, or from, 90% of all characters."""
    if what not in ("first 90%", "last 10%"):
        return parts
    total, done, first = sum(map(len, parts)), 0, []
    for part in parts:
        if done + len(part) > 0.9 * total:
            break
        done += len(part)
        first.append(part)
    return first if what == "first 90%" else parts[len(first):]


# -------------------------------------------------------------------- main

def make(row, folder):
    """Path of the text of one row, made if it is not there."""
    path = folder / f"{row['name']}.txt"
    stamp = folder / f"{row['name']}.made"
    wanted = f"{FORM_VERSION} {row['sha256']} {row['member']} {row['select']}"
    if path.is_file() and stamp.is_file() and \
            stamp.read_text().split("\n")[:2] == [wanted, sha256_of(path)]:
        return path
    deb = fetch_package(row, folder / "packages")
    with tempfile.TemporaryDirectory() as tmp:
        unpack(deb, tmp)
        parts = select(FORMS[row["form"]](tmp, row), row["select"])
    text = "\n\n".join(parts)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.rename(path)
    stamp.write_text(f"{wanted}\n{sha256_of(path)}\n")
    say(f"{path.name}: {len(text)} characters, {row['licence']}")
    return path


def main():
    uses = sys.argv[1:] or ["train"]
    for use in uses:
        if use not in USES:
            sys.exit(f"texts: no use '{use}'; there are: {', '.join(USES)}")
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for row in table():
            if row["use"] in uses:
                print(make(row, folder), flush=True)
    except Failed as e:
        sys.exit(str(e))
    except (OSError, ValueError, struct.error, zlib.error) as e:
        sys.exit(f"texts: {row['name']}: {e}")


if __name__ == "__main__":
    main()
