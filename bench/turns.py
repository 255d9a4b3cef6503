#!/usr/bin/env python3
"""Do chats get slower while they forget? `make bench-turns`.

    bench/turns.py PROGRAM MODEL [--chats N] [--turns N] [--new N] [--lanes N]
                   [--part N]

Two servers run the same chats: one with KV memory for a part (an eighth) of
what they need, the control with all of it. They take turns, turn by turn of
the chats, so that a busy neighbour slows both. Printed are, for each turn,
the tokens of answers per second of both; the same per second of processor time
of the server, which neighbours stretch less; and what was computed of prompts.
Then the ratio of the last turn to the first, with that of the control beside
it, whose chats grow as much and never forget. At every scrape the pool must
be within its budget.

Needs the tests' packages: tests/run.py python.
"""
import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "e2e"))
from ebb_server import CHAT, Server, chat, words  # noqa: E402
from load import MIB, Watch, evicted, rss, together  # noqa: E402

QUESTION = 15  # words of a turn


def cpu_seconds(server):
    stat = Path(f"/proc/{server.process.pid}/stat").read_text()
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


class Chats:
    """The chats of one server."""

    def __init__(self, server, args):
        self.server, self.args = server, args
        self.history = [[] for _ in range(args.chats)]
        self.rate, self.work, self.prefilled, self.share = [], [], [], []

    def say(self, i, turn, shares):
        self.history[i].append({"role": "user",
                                "content": words((i, turn), QUESTION)})
        r = self.server.post(CHAT, chat(self.history[i], ignore_eos=True,
                                        max_tokens=self.args.new))
        if r.status != 200:
            sys.exit(f"turns: {r.status} {r.text}")
        self.history[i].append({"role": "assistant", "content":
                                r.json["choices"][0]["message"]["content"]})
        shares.append(r.json["kv"]["retained_share"])

    def turn(self, turn):
        shares, before = [], self.server.value("ebb_prefill_tokens_total")
        start, cpu = time.monotonic(), cpu_seconds(self.server)
        together([lambda i=i: self.say(i, turn, shares)
                  for i in range(self.args.chats)], self.args.lanes)
        took = time.monotonic() - start
        tokens = self.args.chats * self.args.new
        self.rate.append(tokens / took)
        self.work.append(tokens / (cpu_seconds(self.server) - cpu))
        self.prefilled.append(
            self.server.value("ebb_prefill_tokens_total") - before)
        self.share.append(sum(shares) / len(shares))


def needed(args):
    """Bytes of KV memory for all chats to their end, by a chat of two turns."""
    server = Server(args.program, args.model)
    history, tokens = [], []
    for turn in range(2):
        history.append({"role": "user", "content": words(turn, QUESTION)})
        r = server.post(CHAT, chat(history, max_tokens=args.new,
                                   ignore_eos=True)).json
        tokens.append(r["usage"]["total_tokens"])
        history.append({"role": "assistant", "content":
                        r["choices"][0]["message"]["content"]})
    entry = r["kv"]["bytes"] / r["kv"]["retained_entries"]
    lists = r["kv"]["full_entries"] / r["kv"]["logical_tokens"]
    server.close()
    last = tokens[0] + (args.turns - 1) * (tokens[1] - tokens[0])
    return int(last * args.chats * lists * entry)


def show(small, control, turn):
    if turn == 0:
        print("      tokens/s          per CPU second    prompt tokens\n"
              "turn  small  control    small  control    small  control  kept")
    print(f"{turn + 1:>4} {small.rate[-1]:>6.1f} {control.rate[-1]:>8.1f} "
          f"{small.work[-1]:>8.1f} {control.work[-1]:>8.1f} "
          f"{small.prefilled[-1]:>8.0f} {control.prefilled[-1]:>8.0f} "
          f"{small.share[-1]:>5.0%}", flush=True)


def compare(what, small, control):
    own, theirs = small[-1] / small[0], control[-1] / control[0]
    print(f"last turn / first, {what}: {own:.2f}, control {theirs:.2f}; "
          f"{own / theirs:.2f} of the control")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("program")
    p.add_argument("model")
    for name, value in (("chats", 20), ("turns", 10), ("new", 16),
                        ("lanes", 4), ("part", 8)):
        p.add_argument("--" + name, type=int, default=value)
    args = p.parse_args()
    need = needed(args)
    flags = ("--max-running", str(args.lanes))
    small = Chats(Server(args.program, args.model, *flags, "--kv-memory",
                         str(need // args.part)), args)
    control = Chats(Server(args.program, args.model, *flags, "--kv-memory",
                           str(need + need // 4)), args)
    print(f"{args.chats} chats of {args.turns} turns need {need / MIB:.0f} MiB;"
          f" the pool has {need / args.part / MIB:.1f}, that of the control "
          f"{need * 1.25 / MIB:.0f}", flush=True)
    with Watch(small.server) as watch:
        for turn in range(args.turns):
            for one in (small, control) if turn % 2 else (control, small):
                one.turn(turn)
            show(small, control, turn)
    compare("tokens/s", small.rate, control.rate)
    compare("tokens per CPU second", small.work, control.work)
    print(f"within the budget at {watch.n} scrapes, down to "
          f"{watch.least_free:.1%} free; evicted "
          f"{sum(evicted(small.server).values()):.0f} entries, dropped "
          f"{small.server.value('ebb_kv_dropped_sessions_total'):.0f} chats at "
          f"rest; memory of the process {rss(small.server) / MIB:.0f} MiB, at "
          f"most {watch.most_rss / MIB:.0f}")
    for one in (small, control):
        one.server.close()


if __name__ == "__main__":
    main()
