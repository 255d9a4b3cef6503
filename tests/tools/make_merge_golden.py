"""What the fates of merge/ and SelKV's first stages give, by numpy.

    make_merge_golden.py OUT_DIR

An implementation of its own, in float64, from the formulas of
docs/design/algorithms.md 2 and methods.md 2 and 5; it shares nothing with the
program. Writes (golden_file.py says how)

    input.golden    CASES random lists: positions, states, values, keys...
    <fate>.golden   what the entries hold after the fate: value, key, ratio,
                    and the counts evicted, routed, merged, hosts
    stages.golden   importance and kept sets of the heads of a layer

Every number that goes in is a float32, so that both sides read the same.
Needs: pip install numpy.
"""

import sys

import numpy as np

import golden_file

CASES, N, D, HEADS, WINDOW = 3, 64, 8, 3, 32
LEAVES, STAYS, FIXED = 0, 1, 2
MIN_COSINE, N_NEXT, SEED = 0.75, 5, 1234
MASK = (1 << 64) - 1


class Xoshiro:
    """xoshiro256** seeded by splitmix64 (Blackman and Vigna)."""

    def __init__(self, seed):
        self.s = []
        for _ in range(4):
            seed = (seed + 0x9E3779B97F4A7C15) & MASK
            z = seed
            z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
            z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
            self.s.append(z ^ (z >> 31))

    def next(self):
        def rotl(x, k):
            return ((x << k) | (x >> (64 - k))) & MASK
        s = self.s
        result = (rotl((s[1] * 5) & MASK, 7) * 9) & MASK
        t = (s[1] << 17) & MASK
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = rotl(s[3], 45)
        return result

    def uniform(self):
        return (self.next() >> 40) / (1 << 24)


def cosine(a, b):
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def draw(rng):
    """One list. Neighbours resemble each other, so that gates open and sets
    of similar keys form."""
    walk = rng.normal(size=(N, D)).astype(np.float32)
    key = np.zeros((N, D))
    value = np.zeros((N, D))
    for i in range(N):
        again = i > 0 and rng.random() < 0.7
        key[i] = 0.4 * walk[i] + key[i - 1] if again else walk[i]
        value[i] = rng.normal(size=D) + (value[i - 1] if again else 0)
    pos = np.sort(rng.choice(2 * N, N, replace=False))
    state = np.where(rng.random(N) < 0.4, STAYS, LEAVES)
    state[rng.random(N) < 0.06] = FIXED
    band = np.zeros((N, 32))
    for j in range(N):
        cell = pos[j] % 32
        band[j, :cell] = rng.random(cell) ** 4 * 3
        band[j, cell:] = 9  # must not be read
    column = rng.random(N) ** 2 * np.arange(N, 0, -1)
    return {"pos": pos, "n_seen": 2 * N, "state": state, "value": value, "key": key,
            "mass": rng.random(N) ** 3 * WINDOW, "column": column,
            "band": band.astype(np.float16)}


def rounded(case):
    out = dict(case)
    for name in ("value", "key", "mass", "column"):
        out[name] = case[name].astype(np.float32).astype(np.float64)
    return out


def unchanged(c):
    return c["value"].copy(), c["key"].copy(), np.ones(N)


def selkv(c, _, min_mass=0.0):
    """methods.md 2.1 (3) to (6), with the guard of section 3 as an option."""
    v, k, ratio = unchanged(c)
    a = c["mass"]
    guests = {}
    routed = merged = 0
    for j in np.flatnonzero(c["state"] == LEAVES):
        best, top = None, 0.0
        for i in range(N):
            same = c["pos"][i] // 32 == c["pos"][j] // 32
            if c["state"][i] == STAYS and same and c["pos"][i] < c["pos"][j]:
                w = float(c["band"][j, c["pos"][i] % 32])
                if w > 0 and w >= top:
                    best, top = i, w
        if best is None:
            continue
        routed += 1
        g = max(cosine(c["value"][j], c["value"][best]), 0)
        if a[best] < min_mass * a[j]:
            g = 0
        if g > 0:
            guests.setdefault(best, []).append((g * a[j], c["value"][j]))
            merged += 1
    for i, found in guests.items():
        total = a[i] + sum(w for w, _ in found)
        v[i] = (a[i] * c["value"][i] + sum(w * x for w, x in found)) / total
        ratio[i] = total / a[i]
    return v, k, ratio, (routed, merged)


def guarded(c, i_case):
    return selkv(c, i_case, min_mass=1.0)


def lookm(c, _):
    v, k, ratio = unchanged(c)
    stays = np.flatnonzero(c["state"] == STAYS)
    given = {}
    for e in np.flatnonzero(c["state"] == LEAVES):
        cos = [cosine(c["key"][e], c["key"][i]) for i in stays]
        given.setdefault(stays[int(np.argmax(cos))], []).append(e)
    for i, es in given.items():
        for out, x in ((v, c["value"]), (k, c["key"])):
            out[i] = np.mean([x[i]] + [(x[e] + x[i]) / 2 for e in es], axis=0)
    n = sum(len(es) for es in given.values())
    return v, k, ratio, (n, n)


def kvmerger(c, _):
    v, k, ratio = unchanged(c)
    ends = [i + 1 for i in range(N) if i + 1 == N or
            cosine(c["key"][i], c["key"][i + 1]) <= MIN_COSINE]
    start = n = 0
    for end in ends:
        members = range(start, end)
        start = end
        stays = [i for i in members if c["state"][i] == STAYS]
        leaves = [i for i in members if c["state"][i] == LEAVES]
        if not stays or not leaves:
            continue
        p = max(stays, key=lambda i: (c["column"][i], i))
        d2 = np.array([np.sum((c["key"][p] - c["key"][e]) ** 2)
                       for e in leaves])
        g = np.append(np.exp(-d2 / (2 * np.mean(d2))), 1.0)
        w = g / g.sum()
        for out, x in ((v, c["value"]), (k, c["key"])):
            out[p] = w @ x[leaves + [p]]
        n += len(leaves)
    return v, k, ratio, (n, n)


def weightedkv(c, _):
    v, k, ratio = unchanged(c)
    mean = c["column"] / (c["n_seen"] - c["pos"])
    waiting, n = [], 0
    for t in range(N):
        if c["state"][t] == LEAVES:
            waiting.append(t)
        elif c["state"][t] == STAYS:
            both = waiting + [t]
            v[t] = mean[both] @ c["value"][both] / mean[both].sum()
            n += len(waiting)
            waiting = []
    return v, k, ratio, (n, n)


def cam(c, i_case):
    v, k, ratio = unchanged(c)
    rng = Xoshiro(SEED + i_case)
    routed = merged = 0
    for i in np.flatnonzero(c["state"] == LEAVES):
        u = rng.uniform()
        after = [t for t in range(i + 1, N) if c["state"][t] == STAYS]
        after = after[:N_NEXT]
        if not after:
            continue
        routed += 1
        if u < min(1, c["column"][i] / np.mean(c["column"][after])):
            merged += 1
            for t in after:
                v[t] += c["value"][i] / len(after)
    return v, k, ratio, (routed, merged)


FATES = {"selkv": selkv, "guarded": guarded, "lookm": lookm,
         "kvmerger": kvmerger, "weightedkv": weightedkv, "cam": cam}


def run_fate(fate, cases):
    value, key, ratio, counts = [], [], [], []
    for i, c in enumerate(cases):
        v, k, r, (routed, merged) = fate(c, i)
        hosts = np.any((abs(v - c["value"]) > 1e-9) |
                       (abs(k - c["key"]) > 1e-9), axis=1)
        value.append(v)
        key.append(k)
        ratio.append(r)
        counts.append([np.sum(c["state"] == LEAVES), routed, merged,
                       np.sum(hosts | (r > 1))])
    return {"value": ("f64", value), "key": ("f64", key),
            "ratio": ("f64", ratio), "counts": ("i32", counts)}


def pooled(x, width):
    """avg_pool1d with its padding counted."""
    return np.convolve(x, np.ones(width) / width, mode="same")


def highest(score, k, free):
    order = sorted(np.flatnonzero(free), key=lambda i: (score[i], i))
    return set(order[len(order) - k:]) if k > 0 else set()


def stages(rng, m, n_sinks, n_recent):
    """methods.md 2.1 (1) and (2) for the heads of one layer."""
    window = rng.random((HEADS, WINDOW, N)) ** 6
    norm = rng.random((HEADS, N)) * 2
    window = window.astype(np.float32).astype(np.float64)
    norm = norm.astype(np.float32).astype(np.float64)
    mass = window.sum(1)
    score = np.array([pooled(mass[h] * norm[h], 5) for h in range(HEADS)])
    index = np.arange(N)
    free = (index >= n_sinks) & (index < N - n_recent)
    k = m - int(np.sum(~free))
    per_head = np.zeros((HEADS, N), int)
    union = set()
    for h in range(HEADS):
        best = highest(score[h], k, free)
        union |= best
        per_head[h] = ~free | np.isin(index, list(best))
    trimmed = highest(score.mean(0), k, np.isin(index, list(union)))
    layer = ~free | np.isin(index, list(trimmed))
    return {"shape": ("i32", [m, n_sinks, n_recent]),
            "window": ("f32", window), "norm": ("f32", norm),
            "mass": ("f64", mass), "importance": ("f64", score),
            "per_head": ("i32", per_head), "layer": ("i32", layer)}


def main():
    out = sys.argv[1]
    rng = np.random.default_rng(1)
    cases = [draw(rng) for _ in range(CASES)]
    types = {"pos": "i32", "state": "i32", "value": "f32", "key": "f32",
             "mass": "f32", "column": "f32"}
    arrays = {name: (kind, [c[name] for c in cases])
              for name, kind in types.items()}
    arrays["band"] = ("i32", [c["band"].view(np.uint16) for c in cases])
    arrays["options"] = ("f64", [MIN_COSINE, N_NEXT, SEED, 2 * N])
    golden_file.write(f"{out}/input.golden", arrays)
    cases = [rounded(c) for c in cases]
    for name, fate in FATES.items():
        golden_file.write(f"{out}/{name}.golden", run_fate(fate, cases))
    golden_file.write(f"{out}/stages.golden", stages(rng, 34, 4, 16))


if __name__ == "__main__":
    main()
