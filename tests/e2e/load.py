"""Load on a server, and what is watched meanwhile."""
import re
import threading
from pathlib import Path

MIB = 1 << 20


def evicted(server):
    return {c: server.value("ebb_kv_evicted_entries_total", cause=c)
            for c in ("pressure", "cap", "admission")}


def rss(server):
    """Bytes of memory that its process has."""
    text = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"^VmRSS:\s+(\d+) kB", text, re.M).group(1)) * 1024


class Watch(threading.Thread):
    """Scrapes all along; the pool must add up at every scrape. Keeps how full
    it was, and the memory of the process."""

    def __init__(self, server, pause=0.05):
        super().__init__(daemon=True)
        self.server, self.done, self.n = server, threading.Event(), 0
        self.pause, self.faults = pause, []
        self.least_free, self.most_rss = 1.0, 0

    def run(self):
        while not self.done.wait(self.pause):
            samples = self.server.metrics()
            part = {s.labels["state"]: s.value for s in samples
                    if s.name == "ebb_kv_bytes"}
            budget, = [s.value for s in samples
                       if s.name == "ebb_kv_budget_bytes"]
            self.n += 1
            self.least_free = min(self.least_free, part["free"] / budget)
            self.most_rss = max(self.most_rss, rss(self.server))
            if sum(part.values()) != budget or min(part.values()) < 0:
                self.faults.append((part, budget))

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.join()
        assert self.n > 3 and not self.faults, self.faults[:3]


def together(jobs, lanes):
    """Runs them, so many at the same time; the first fault is raised."""
    faults, todo, lock = [], list(jobs), threading.Lock()

    def lane():
        while True:
            with lock:
                if not todo or faults:
                    return
                job = todo.pop(0)
            try:
                job()
            except BaseException as e:  # told below
                faults.append(e)

    threads = [threading.Thread(target=lane) for _ in range(lanes)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if faults:
        raise faults[0]
