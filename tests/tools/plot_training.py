#!/usr/bin/env python3
"""Draws the curves of `ebb gates train --log` as an SVG picture.

    plot_training.py OUT.svg LOG.jsonl [LOG.jsonl ...]

Several logs are stages of one training, one after the other. Each curve is a
running mean over 25 steps; a run that was killed and went on may have logged
steps twice, and the later line counts.
"""
import json
import sys
from pathlib import Path

WIDTH, HEIGHT, LEFT, TOP, GAP = 860, 190, 60, 34, 46
WINDOW = 25
COLOURS = {"plain": "#1b6ca8", "chat": "#d1495b", "recall": "#2e933c",
           "copy": "#8d5a97", "list": "#c98a00",
           "cloze": "#3a8fb7", "all": "#333333"}


def read(paths):
    """Lines of all stages in order, and where each stage begins."""
    rows, starts = [], []
    for path in paths:
        stage = {}
        for line in Path(path).read_text().splitlines():
            row = json.loads(line)
            stage[row["step"]] = row
        starts.append(len(rows))
        rows += [stage[step] for step in sorted(stage)]
    return rows, starts


def smooth(points):
    """Running means [(x, y)] of [(x, y)]."""
    out = []
    for i, (x, _) in enumerate(points):
        near = [y for _, y in points[max(0, i - WINDOW + 1):i + 1]]
        out.append((x, sum(near) / len(near)))
    return out[min(len(out), WINDOW) // 2:]


def panel(top, title, curves, n_steps, starts, floor=0.0):
    """One diagram as SVG elements; curves are {name: [(step, value)]}."""
    values = [y for points in curves.values() for _, y in points]
    high = sorted(values)[int(0.99 * (len(values) - 1))] * 1.1
    low = min(floor, min(values))

    def at(x, y):
        y = min(max(y, low), high)
        return (LEFT + x / max(1, n_steps) * WIDTH,
                top + HEIGHT - (y - low) / (high - low) * HEIGHT)

    out = [f'<text x="{LEFT}" y="{top - 10}" class="t">{title}</text>']
    for i in range(5):
        y = low + (high - low) * i / 4
        _, v = at(0, y)
        out.append(f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{v:.1f}" '
                   f'y2="{v:.1f}" class="g"/><text x="{LEFT - 6}" '
                   f'y="{v + 4:.1f}" class="n">{y:.3g}</text>')
    for start in starts[1:]:
        x, _ = at(start, 0)
        out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" '
                   f'y2="{top + HEIGHT}" class="s"/>')
    for i, (name, points) in enumerate(curves.items()):
        line = " ".join("%.1f,%.1f" % at(x, y) for x, y in points)
        colour = COLOURS[name]
        out.append(f'<polyline points="{line}" stroke="{colour}"/>')
        out.append(f'<text x="{LEFT + 330 + 90 * i}" y="{top - 10}" '
                   f'fill="{colour}">{name}</text>')
    return out


def curves(rows, value, names):
    """{name: smoothed points} of value(row), for these kinds or `all`; None
    is no point."""
    out = {}
    for name in names:
        points = [(x, value(r)) for x, r in enumerate(rows)
                  if name in ("all", r["kind"]) and value(r) is not None]
        if points:
            out[name] = smooth(points)
    return out


def answer_loss(row):
    """None where the sequence asks nothing, or an older run did not say."""
    if "answer" not in row:
        return None
    return row["answer"] - row["teacher_answer"]


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    rows, starts = read(sys.argv[2:])
    if not rows:
        sys.exit("the logs hold no step")
    kinds = [k for k in COLOURS if k != "all"]
    panels = [
        ("KL to the model that forgets nothing",
         curves(rows, lambda r: r["kl"], kinds)),
        ("next-token loss above that of the full model",
         curves(rows, lambda r: r["ntp"] - r["teacher_ntp"], ["all"])),
        ("loss of the answers above that of the full model",
         curves(rows, answer_loss, ["recall"])),
        ("soft number of living entries a head",
         curves(rows, lambda r: r["alive"], ["all"])),
    ]
    body, top = [], TOP
    for title, lines in panels:
        if not lines:
            continue
        body += panel(top, title, lines, len(rows), starts)
        top += HEIGHT + GAP
    body.append(f'<text x="{LEFT + WIDTH}" y="{top - GAP + 18}" class="n">'
                f'{len(rows)} steps</text>')
    Path(sys.argv[1]).write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 20}" '
        f'height="{top}" font-family="sans-serif" font-size="12">'
        '<style>polyline{fill:none;stroke-width:1.5}.g{stroke:#ddd}'
        '.s{stroke:#999;stroke-dasharray:4 3}.n{text-anchor:end;fill:#555}'
        '.t{font-weight:bold}</style>'
        '<rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(body) + "\n</svg>\n")


if __name__ == "__main__":
    main()
