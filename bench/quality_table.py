#!/usr/bin/env python3
"""Rows of `ebb eval --json` as Markdown: tables, and what may be said of them.

    bench/quality_table.py FILE [--tasks A,B2,F] [--metrics nll,kl,em]
                           [--of dbtrimkv] [--split test] [--pooled]

A table for each model, mode, context, seed, gates, settings and number of
documents, whose heading says which of these differ: a line a policy and budget,
a column a task and metric. The best figure of a budget is bold, among the
policies that keep other entries and don't know the answers; a star says that
its distance to the second, document by document, has an interval without zero,
with 8 documents or more. Where the model is too weak for a task there is
neither. Below stand the sentences about one policy (--of): its distance to the
best other over all tasks of a run, its divergence as a share of the best
other's, and its exact recall as a share of the full cache's. Then how far each
other is from the policy that the run names with --against, over the same tasks,
and what each fate adds to its policy alone.

--pooled: instead a line a policy or fate, in the order of KL at the smallest
budget, with the figures of all tasks of a run together at every budget, and
exact recall (B2).

Python's standard library only.
"""
import argparse
import json
import sys
from collections import defaultdict, namedtuple

ALL = "all of "
ENDS = {"full": "all", "no-context": "none"}
ORACLE = "oracle"  # it knows the answers, and is no rival
SURE = 8  # documents; with fewer nothing is beyond doubt (interval.h)
HIGHER = {"em", "agree", "top1", "choice"}


class Rows:
    """The rows of one group: what was measured alike."""

    def __init__(self):
        self.row = {}

    def add(self, task, r):
        self.row[task, r["policy"], r["budget"], r["metric"]] = r

    def get(self, task, policy, budget, metric):
        return self.row.get((task, policy, budget, metric))

    def mean(self, *key):
        r = self.get(*key)
        return None if r is None else r["mean"]

    def budgets(self):
        return sorted({b for _, p, b, _ in self.row if p not in ENDS},
                      reverse=True)

    def policies(self, budget):
        return list(dict.fromkeys(p for _, p, b, _ in self.row
                                  if b == budget and p not in ENDS))

    def tasks_of(self, policy, budget):
        return list(dict.fromkeys(t for t, p, b, _ in self.row
                                  if (p, b) == (policy, budget) and
                                  not t.startswith(ALL)))

    def sets(self):
        """Names of what was measured over all of some tasks; most tasks
        first."""
        return sorted({t for t, _, _, _ in self.row if t.startswith(ALL)},
                      key=lambda t: (-t.count(","), t))

    def only_task(self):
        """A run of one task has no line for all of them."""
        tasks = {t for t, _, _, _ in self.row}
        return list(tasks) if len(tasks) == 1 else []

    def columns(self, tasks, metrics):
        have = {(t, m) for t, _, _, m in self.row}
        return [(t, m) for t in tasks for m in metrics if (t, m) in have]


# What the rows of one table have in common, beside the number of documents.
# Older rows do not say their settings.
Group = namedtuple("Group", "model context mode split seed gates settings docs")


def group_of(r, docs):
    return Group(*(r.get(f) for f in Group._fields[:-1]), docs)


def read(lines, split):
    """{Group: Rows}."""
    rows = [r for r in map(json.loads, lines) if r.get("split", split) == split]
    found = defaultdict(Rows)
    for r in rows:
        if r["task"] != "all":
            found[group_of(r, r["n"])].add(r["task"], r)
    add_all([r for r in rows if r["task"] == "all"], found)
    return found


def add_all(rows, found):
    """Those of all tasks together, where their documents are as many as the
    group's. Older rows do not name the tasks: then they are those that the
    policy has there."""
    def cell(r):
        return (group_of(r, None), r["policy"], r["budget"], r.get("tasks"))
    n = defaultdict(int)
    for r in rows:  # some tasks have no em
        n[cell(r)] = max(n[cell(r)], r["n"])
    for r in rows:
        for group, some in found.items():
            tasks = r["tasks"].split(",") if "tasks" in r else \
                some.tasks_of(r["policy"], r["budget"])
            if group._replace(docs=None) == group_of(r, None) and \
                    n[cell(r)] == group.docs * len(tasks):
                some.add(ALL + ", ".join(tasks), r)


def is_rival(policy):
    """A fate keeps its policy's entries, and so does what moves them together:
    they are compared elsewhere. What knows the answers competes with none."""
    return "+" not in policy and ":reposition" not in policy and \
        policy != ORACLE


def best_first(rows, budget, task, metric, policies):
    """(mean, policy) of the rivals, the best one first."""
    sign = -1 if metric in HIGHER else 1
    known = [(rows.mean(task, p, budget, metric), p) for p in policies
             if is_rival(p)]
    return sorted(((m, p) for m, p in known if m is not None),
                  key=lambda x: sign * x[0])


def is_apart(rows, policy, budget, column, second):
    """Whether the best is so beyond doubt. Its run may have known less policies
    than the table has: then another was the best other."""
    task, metric = column
    r = rows.get(task, policy, budget, metric + "_minus_best")
    if r is None or r["n"] < SURE or r["lo"] * r["hi"] <= 0:
        return False
    other = rows.mean(task, r["against"], budget, metric)
    sign = -1 if metric in HIGHER else 1
    return other is not None and sign * other <= sign * second


def is_weak(r):
    """The full cache fails, too: the figure says nothing about the policy."""
    return r is not None and "note" in r


def cell(rows, policy, budget, column):
    r = rows.get(column[0], policy, budget, column[1])
    if r is None:
        return ""
    text = f"{r['mean']:.3f}"
    if is_weak(r):
        return text + " (too weak)"
    if policy in ENDS:
        return text
    order = best_first(rows, budget, *column, rows.policies(budget))
    if order and order[0][1] == policy:
        apart = len(order) > 1 and \
            is_apart(rows, policy, budget, column, order[1][0])
        text = f"**{text}**" + ("\\*" if apart else "")
    return text


def table(rows, columns):
    head = ["policy", "budget", "KiB a prompt"] + \
        [f"{t}: {m.replace('kl', 'KL')}" for t, m in columns]
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    lines = [(e, b) for e in ENDS
             for b in {b for _, p, b, _ in rows.row if p == e}]
    widest = (rows.sets() or [""])[0]
    for budget in rows.budgets():
        order = best_first(rows, budget, widest, "kl", rows.policies(budget))
        first = [ORACLE] * (ORACLE in rows.policies(budget)) + \
            [p for _, p in order]
        lines += [(p, budget) for p in first] + \
            [(p, budget) for p in rows.policies(budget) if p not in first]
    for policy, budget in lines:
        size = next(r["bytes"] for (_, p, b, _), r in rows.row.items()
                    if (p, b) == (policy, budget))
        yield "| " + " | ".join(
            [policy, ENDS.get(policy, f"{100 * budget:g}%"),
             f"{size / 1024:.0f}"] +
            [cell(rows, policy, budget, c) for c in columns]) + " |"


def pooled(rows, tasks):
    """One line a policy and fate: of all tasks together, at every budget."""
    budgets = rows.budgets()[::-1]
    columns = [(tasks, "kl"), (tasks, "nll"), ("B2", "em")]
    yield "| policy | " + " | ".join(
        f"{100 * b:g}%: {m.replace('kl', 'KL')}" + " (B2)" * (t == "B2")
        for t, m in columns for b in budgets) + " |"
    yield "|" + "---|" * (1 + len(columns) * len(budgets))

    def line(policy, only=None):
        cells = [rows.get(t, policy, b if only is None else only, m)
                 for t, m in columns for b in budgets]
        return f"| {policy} | " + " | ".join(
            "" if r is None else f"{r['mean']:.3f}" +
            " (too weak)" * is_weak(r) for r in cells) + " |"
    for policy, b in (("full", 1), ("no-context", 0)):
        if rows.get(tasks, policy, b, "kl"):
            yield line(policy, b)
    order = sorted((rows.mean(tasks, p, budgets[0], "kl"), p)
                   for p in rows.policies(budgets[0])
                   if rows.get(tasks, p, budgets[0], "kl"))
    for _, policy in order:
        yield line(policy)


def interval(r):
    return f"{r['mean']:+.4f} [{r['lo']:+.4f}, {r['hi']:+.4f}]"


def differences(rows, task, policy, budget, other):
    """nll, kl and em minus those of another, as cells of a table."""
    found = [rows.get(task, policy, budget, f"{m}_minus_{other}")
             for m in ("nll", "kl", "em")]
    return " | ".join("" if r is None else r["note"] if is_weak(r)
                      else interval(r) for r in found)


def sentences(rows, tasks, name):
    """What may be said of one policy over a set of tasks, at every budget."""
    for budget in rows.budgets():
        if rows.get(tasks, name, budget, "kl") is None:
            continue
        said = []
        for metric in ("nll", "kl", "em"):
            r = rows.get(tasks, name, budget, metric + "_minus_best")
            if is_weak(r):
                said.append(f"{metric}: {r['note']}")
            elif r is not None:
                said.append(f"{metric} {interval(r)} from {r['against']}")
        others = [p for p in rows.policies(budget) if p != name]
        order = best_first(rows, budget, tasks, "kl", others)
        if order and order[0][0] > 0:
            share = rows.mean(tasks, name, budget, "kl") / order[0][0]
            said.append(f"KL {share:.2f} of {order[0][1]}'s")
        full = rows.mean("B2", "full", 1, "em")
        recall = rows.get("B2", name, budget, "em") \
            if "B2" in tasks.removeprefix(ALL).split(", ") else None
        if is_weak(recall):
            said.append(f"exact recall (B2): {recall['note']}")
        elif full and recall is not None:
            recall = recall["mean"]
            said.append(f"exact recall (B2) {100 * recall / full:.0f}% of the "
                        "full cache's")
        yield f"- {name} at {100 * budget:g}%, {tasks}: " + "; ".join(said)


def named_others(rows):
    """The policies that runs named with --against."""
    return sorted({r["against"] for (_, _, _, m), r in rows.row.items()
                   if m == f"nll_minus_{r.get('against')}"})


def distances(rows, tasks, against):
    """How far each policy is from one of these."""
    for budget in rows.budgets():
        for policy in rows.policies(budget):
            cells = differences(rows, tasks, policy, budget, against)
            if cells.strip(" |"):
                yield f"| {policy} | {100 * budget:g}% | {cells} |"


def fates(rows):
    """What each adds to its policy alone."""
    merged = {(p, -b, t): r for (t, p, b, m), r in rows.row.items()
              if m.endswith("_minus_drop")}
    for (policy, less, task), r in sorted(merged.items()):
        cells = differences(rows, task, policy, -less, "drop")
        yield f"| {policy} | {-100 * less:g}% | {task} | {cells} | " \
            f"{100 * r['routed']:.0f}% |"


def heading(group, groups):
    """Names what other tables of the same model, context, mode and split have
    otherwise."""
    alike = [g for g in groups if g[:4] == group[:4]]
    words = [f"{group.docs} documents a task", group.split or ""]
    for field in ("seed", "gates", "settings"):
        if len({getattr(g, field) for g in alike}) > 1:
            words.append(f"{field} {getattr(group, field) or 'not said'}")
            alike = [g for g in alike
                     if getattr(g, field) == getattr(group, field)]
    return f"### {group.model}, {group.context} tokens, {group.mode}, " + \
        ", ".join(words)


def in_order(found):
    return sorted(found, key=lambda g: [str(x) for x in g[:-1]] +
                  [f"{g.docs:9}"])


def report_pooled(found):
    for group in in_order(found):
        for tasks in found[group].sets():
            yield heading(group, found) + f", {tasks}"
            yield ""
            yield from pooled(found[group], tasks)
            yield ""


def report(found, tasks, metrics, name):
    for group in in_order(found):
        rows = found[group]
        yield heading(group, found)
        yield ""
        yield from table(rows, rows.columns(tasks, metrics))
        yield ""
        for some in rows.sets() or rows.only_task():
            yield from sentences(rows, some, name)
            for against in named_others(rows):
                apart = list(distances(rows, some, against))
                if apart:
                    yield ""
                    yield f"| less {against}, {some} | budget | nll | KL | em |"
                    yield "|" + "---|" * 5
                    yield from apart
        merged = list(fates(rows))
        if merged:
            yield ""
            yield "| fate, less its policy alone | budget | task | nll | KL " \
                "| em | routed |"
            yield "|" + "---|" * 7
            yield from merged
        yield ""


def main(argv=None):
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("file", type=argparse.FileType(encoding="utf-8"))
    p.add_argument("--tasks", default="A,A2,B1,B2,C,D,E1,E2,E3,F,G,I")
    p.add_argument("--metrics", default="nll,kl,em")
    p.add_argument("--of", default="dbtrimkv")
    p.add_argument("--split", default="test")
    p.add_argument("--pooled", action="store_true")
    o = p.parse_args(argv)
    found = read(o.file, o.split)
    if not found:
        sys.exit(f"{o.file.name}: no row of split {o.split}")
    lines = report_pooled(found) if o.pooled else \
        report(found, o.tasks.split(","), o.metrics.split(","), o.of)
    for line in lines:
        print(line)


if __name__ == "__main__":
    main()
