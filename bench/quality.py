#!/usr/bin/env python3
"""The long runs of the quality suite: what every policy costs a model.

    bench/quality.py STAGE... [--model FILE] [--second FILE] [--best NAMES]
                     [--split test|dev] [--seed N] [--only first|second]
                     [--out DIR] [--threads N] [--dry-run] [--fresh] [--keep]

Stages, each one or more runs of `build/ebb eval` (docs/quality.md says what
they are for):

    screening  every policy and fate, three budgets, both modes
    final      the best of them (--best), the controls and their merges, both
               models, 40 documents
    rest       all other tasks, once
    ablation   SelKV's merge without its bias, and without its guards; sets of
               each head, and what stays moved together
    retention  learned retention against what keeps other entries, both models,
               1k and 2k with 40 documents, 4k with 12 on the second

All rows go to quality.json in --out, and a page a run to quality-*.html there.
A run that was interrupted goes on when the same stage is named again: what is
in quality.json.part is not measured twice. It begins with what this repository
keeps of earlier runs (bench/results), so that a run may go on on another
machine; --fresh measures everything again, --keep puts there what --out has.
Hours are printed for each run.
bench/quality_table.py makes tables of the rows. Texts: `make texts USE="dev
test"`. Python's standard library only.
"""
import argparse
import lzma
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
KEPT = ROOT / "bench" / "results" / "cells.jsonl.xz"
POLICIES = ["dbtrimkv", "trimkv", "selkv-window", "snapkv", "adakv",
            "pyramidkv", "h2o", "tova", "r-kv", "streamingllm", "keydiff",
            "knorm", "expected-attention", "random", "fastv"]
FATES = ["lookm", "kvmerger", "weightedkv", "cam"]
ENDS = ["full", "no-context", "oracle"]
MODELS = ("first", "second")
CONTROLS = ["random", "streamingllm"]
BEST = ["dbtrimkv", "trimkv", "r-kv", "tova", "adakv", "selkv-window"]
MERGED = ["dbtrimkv", "selkv-window"]


def merges(policies):
    return [f"{p}+merge" for p in policies]


def run(models, mode, tasks, policies, **more):
    return {"models": models, "mode": mode, "tasks": tasks,
            "policy": ",".join(dict.fromkeys(ENDS + policies)),
            "budget": "0.125,0.25", "context": 2048, "docs": 12,
            "against": "dbtrimkv", **more}


def screening(_):
    policies = POLICIES + merges(POLICIES) + \
        [f"{p}+{f}" for p in MERGED for f in FATES]
    return [run([1], mode, "A,B2,E1,F", policies, budget="0.125,0.25,0.5")
            for mode in ("agnostic", "aware")]


def final(best):
    policies = best + CONTROLS + \
        merges(dict.fromkeys(best + CONTROLS + ["selkv-window"]))
    return [run([1, 2], "agnostic", "A,B2,C,E1,F", policies, docs=40),
            run([1, 2], "aware", "B2", policies, docs=40),
            run([1, 2], "agnostic", "A,B2", policies, docs=40, context=4096)]


def rest(best):
    return [run([1], "agnostic", "A2,B1,D,E2,E3,G,I", best + CONTROLS +
                merges(MERGED))]


def ablation(_):
    off = ("alpha=0", "min-mass=0:max-ratio=0")
    policies = MERGED + merges(MERGED) + \
        [f"{p}+merge:{o}" for p in MERGED for o in off] + \
        [f"{p}:reposition" for p in MERGED] + \
        ["selkv-window:per-head-sets", "selkv-window:per-head-sets+merge"]
    return [run([1], "agnostic", "A,B2,E1,F", policies, docs=40,
                against="dbtrimkv+merge")]


def retention(_):
    policies = ["random", "streamingllm", "keydiff", "knorm", "trimkv",
                "dbtrimkv"]
    budget = "0.125,0.25,0.5"
    return [run([1, 2], "agnostic", "A,B2,F", policies, docs=40, context=1024,
                budget="0.0625," + budget),
            run([1, 2], "agnostic", "A,B2,F", policies, docs=40,
                budget=budget),
            run([2], "agnostic", "A,B2,F", policies, context=4096,
                budget=budget)]


STAGES = {f.__name__: f
          for f in (screening, final, rest, ablation, retention)}


def command(model, name, r, options):
    seed = f"-seed{options.seed}" if options.seed else ""
    page = f"quality-{name}-{model.stem}-{r['mode']}-{r['context']}{seed}.html"
    flags = {"model": model, "mode": r["mode"], "tasks": r["tasks"],
             "policy": r["policy"], "budget": r["budget"],
             "context": r["context"], "docs": r["docs"],
             "split": options.split, "against": r["against"],
             "json": options.out / "quality.json",
             "html": options.out / page}
    if options.seed:
        flags["seed"] = options.seed
    if options.threads:
        flags["threads"] = options.threads
    return [str(BUILD / "ebb"), "eval",
            *(str(x) for k, v in flags.items() for x in (f"--{k}", v))]


def fetched(name):
    """The file of a model of deploy/models.tsv."""
    out = subprocess.run([sys.executable, ROOT / "deploy" / "fetch_model.py",
                          name], stdout=subprocess.PIPE, text=True, check=True)
    return Path(out.stdout.strip().splitlines()[-1])


def commands(options):
    models = [options.model or fetched("smollm2-135m")]
    if {"final", "retention"} & set(options.stage):
        models.append(options.second or fetched("qwen2.5-coder-0.5b"))
    return [command(models[i - 1], name, r, options)
            for name in options.stage
            for r in STAGES[name](options.best.split(","))
            for i in r["models"]
            if options.only in (None, MODELS[i - 1])]


def begin(part, fresh):
    """A file of cells that is not there begins with the kept ones."""
    part.parent.mkdir(parents=True, exist_ok=True)
    if not part.exists() and KEPT.exists() and not fresh:
        part.write_bytes(lzma.decompress(KEPT.read_bytes()))


def keep(part):
    """Sorted, so that the same cells are the same file."""
    if not part.exists():
        sys.exit(f"{part} is not there: nothing was measured with this --out")
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    cells = sorted(set(part.read_text().splitlines(keepends=True)))
    KEPT.write_bytes(lzma.compress("".join(cells).encode(), preset=9))
    print(f"{len(cells)} cells in {KEPT}", flush=True)


def stage(name):
    if name not in STAGES:
        raise argparse.ArgumentTypeError(
            f"'{name}' is none of {', '.join(STAGES)}")
    return name


def arguments(argv):
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("stage", nargs="*", type=stage, help=", ".join(STAGES))
    p.add_argument("--model", type=Path, help="else the default one")
    p.add_argument("--second", type=Path, help="of final; else Qwen2.5 0.5B")
    p.add_argument("--best", default=",".join(BEST),
                   help="what the screening has found (%(default)s)")
    p.add_argument("--split", default="test", choices=("test", "dev"))
    p.add_argument("--seed", type=int, help="other documents; else 1")
    p.add_argument("--only", choices=MODELS,
                   help="the default model's runs, or the other one's")
    p.add_argument("--out", type=Path, default=BUILD,
                   help="folder of the results (%(default)s)")
    p.add_argument("--threads")
    p.add_argument("--dry-run", action="store_true",
                   help="print the commands only")
    p.add_argument("--fresh", action="store_true",
                   help="do not begin with the kept cells")
    p.add_argument("--keep", action="store_true",
                   help="put all cells into bench/results at the end")
    options = p.parse_args(argv)
    if not options.stage and not options.keep:
        p.error("name a stage, or --keep")
    return options


def main(argv=None):
    options = arguments(argv)
    part = options.out / "quality.json.part"
    if not options.dry_run:
        begin(part, options.fresh)
    for line in commands(options):
        print(" ".join(line), flush=True)
        if options.dry_run:
            continue
        start = time.monotonic()
        status = subprocess.run(line, stdout=subprocess.DEVNULL).returncode
        print(f"{(time.monotonic() - start) / 3600:.2f} hours", flush=True)
        if status != 0:
            sys.exit(status)
    if options.keep and not options.dry_run:
        keep(part)


if __name__ == "__main__":
    main()
