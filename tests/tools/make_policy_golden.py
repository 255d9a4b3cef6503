"""What eviction policies keep of a tiny model's cache, computed elsewhere.

    make_policy_golden.py MODEL.gguf OUT.golden

The model runs in float64 (reference_forward.py), and from its queries, keys,
values and attention the kept sets are computed by

  kvpress   the public package, where it defines a method as we do: snapkv,
            tova, keydiff, knorm, streamingllm, expected-attention, with its
            own window and pooling, and nothing protected but its own
  numpy     below, from docs/design/methods.md and nothing else, for methods
            that kvpress lacks or defines otherwise, and for our protection
            (docs/decisions/policies.md has the differences)

Needs: pip install numpy gguf tokenizers torch kvpress. Only kvpress's presses
are imported, not the package, whose pipeline wants data set libraries.

The file holds tokens; masks [case][list][n] in the order of CASES, a list is
a (layer, KV head); and what a probe should see: window [list][W][n], peak
alike, column [list][n], band [list][n][32], mean of future queries [list][G][d]
(their covariance shows in what expected-attention keeps).
The tokens are the first random ones for which no two scores at a border are
within GAP of each other, relatively: float32 decides the same.
"""

import importlib.util
import sys
import types

import numpy as np

import golden_file
from reference_forward import Model

N, WINDOW, BUCKET, GAP = 200, 32, 32, 2e-5
SINKS, RECENT = 4, 16


class Tie(Exception):
    """Two scores at the border are too near each other."""


class Watched(Model):
    """Remembers queries, keys and values of every layer."""

    def __init__(self, path):
        super().__init__(path, np.float64)
        self.rotations = []

    def rotate(self, x, pos):
        out = super().rotate(x, pos)
        self.rotations.append((x, out))
        return out

    def run(self, tokens):
        cache = {}
        self.rotations.clear()
        self.hidden(tokens, cache)
        group = self.n_heads // self.n_kv
        layers = []
        for i in range(self.n_layers):
            before, q = self.rotations[2 * i]
            k, v = cache[f"blk.{i}"]
            heads = lambda x: x.transpose(1, 0, 2)  # [heads][n][d]
            layer = {"q0": heads(before), "q": heads(q), "k": heads(k),
                     "v": heads(v)}
            logit = np.einsum("hqd,hkd->hqk", layer["q"],
                              layer["k"].repeat(group, 0))
            logit /= np.sqrt(self.head_dim)
            seen = np.tril(np.ones((N, N), bool))
            layer["logit"] = np.where(seen, logit, -np.inf)
            layer["a"] = softmax(layer["logit"])
            layers.append(layer)
        return layers


def softmax(x):
    p = np.exp(x - x.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


# ------------------------------------------------------------------- kvpress

def presses():
    spec = importlib.util.find_spec("kvpress")
    package = types.ModuleType("kvpress")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["kvpress"] = package
    get = lambda file, name: getattr(
        importlib.import_module(f"kvpress.presses.{file}_press"), name)
    return {
        "snapkv": lambda r: get("snapkv", "SnapKVPress")(
            r, window_size=WINDOW, kernel_size=5),
        "tova": lambda r: get("tova", "TOVAPress")(r),
        "keydiff": lambda r: get("keydiff", "KeyDiffPress")(r),
        "knorm": lambda r: get("knorm", "KnormPress")(r),
        "streamingllm": lambda r: get("streaming_llm", "StreamingLLMPress")(
            r, n_sink=SINKS),
        "expected-attention": lambda r: get(
            "expected_attention", "ExpectedAttentionPress")(r, n_sink=SINKS),
    }


class Attention:
    """What a press wants of an attention layer. Its "hidden states" are the
    queries before rotation, so the projection is nothing."""

    def __init__(self, model):
        self.model = model
        self.head_dim = model.head_dim
        self.config = types.SimpleNamespace(
            num_attention_heads=model.n_heads,
            num_key_value_heads=model.n_kv)
        self.q_proj = lambda x: x

    def rotary_emb(self, x, positions):
        import torch
        half = self.head_dim // 2
        freq = self.model.rope_base ** (
            -2.0 * torch.arange(half, dtype=x.dtype) / self.head_dim)
        angle = positions[0, :, None].to(x.dtype) * freq
        both = torch.cat([angle, angle], -1)[None]
        return both.cos(), both.sin()


def by_kvpress(model, layers, make_press, name, budget):
    import torch
    press = make_press[name](1 - budget / N)
    out = []
    for layer in layers:
        batch = {k: torch.from_numpy(np.ascontiguousarray(v))[None]
                 for k, v in layer.items()}
        hidden = batch["q0"].transpose(1, 2).reshape(1, N, -1)
        score = press.score(Attention(model), hidden, batch["k"], batch["v"],
                            batch["a"], {})
        # Some scores say only whether an entry stays.
        out.append(top(score[0].numpy(), budget, name != "streamingllm"))
    return np.stack(out)


# --------------------------------------------------------------------- numpy

def top(score, n, check=True):
    """Masks of the n largest of each row, later ones first among equals."""
    later = np.broadcast_to(np.arange(score.shape[-1]), score.shape)
    order = np.lexsort((later, score))
    keep = np.zeros(score.shape, np.int32)
    np.put_along_axis(keep, order[..., score.shape[-1] - n:], 1, -1)
    if check and n < score.shape[-1]:
        ranked = np.sort(score, -1)
        a, b = ranked[..., -n - 1], ranked[..., -n]
        # Equal ones are fine: both sides of a border inside a maximum.
        finite = np.isfinite(a) & np.isfinite(b) & (a < b)
        a, b = a[finite], b[finite]
        if ((b - a) / np.maximum(np.abs(a), np.abs(b)) < GAP).any():
            raise Tie
    return keep


def protected(score, recent, sinks=SINKS):
    """Scores of lists [heads][n] with what always stays set to infinity."""
    s = score.copy()
    s[:, :sinks] = np.inf
    s[:, N - recent:] = np.inf
    return s


def pool(x, width, kind):
    """Of the last axis."""
    half = width // 2
    fill = -np.inf if kind == "max" else 0.0
    wide = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(half, half)],
                  constant_values=fill)
    views = np.stack([wide[..., i:i + x.shape[-1]] for i in range(width)])
    return views.max(0) if kind == "max" else views.sum(0) / width


def grouped(model, x):
    """[heads][...] to [KV heads][group][...]."""
    return x.reshape(model.n_kv, -1, *x.shape[1:])


def snapkv_scores(model, layer):
    rows = layer["a"][:, -WINDOW:, :N - WINDOW].mean(1)
    s = pool(grouped(model, rows).mean(1), 7, "max")
    return np.pad(s, ((0, 0), (0, WINDOW)))


def snapkv(model, layers, budget):
    return np.stack([top(protected(snapkv_scores(model, x), WINDOW), budget)
                     for x in layers])


def adakv(model, layers, budget, share=0.2):
    out = []
    for layer in layers:
        s = protected(snapkv_scores(model, layer), WINDOW)
        free = ~np.isinf(s)
        base = budget - (SINKS + WINDOW)
        room = base * model.n_kv
        first = top(np.where(free, s, -np.inf).reshape(1, -1), room)[0]
        count = first.reshape(s.shape).sum(1)
        want = count * (1 - share) + base * share
        size = np.floor(want + 1e-9).astype(int)
        for h in np.argsort(-(want - size), kind="stable")[:room - size.sum()]:
            size[h] += 1
        out.append(np.concatenate(
            [top(s[h:h + 1], SINKS + WINDOW + size[h])
             for h in range(model.n_kv)]))
    return np.stack(out)


def pyramidkv(model, layers, budget):
    base, L = budget - WINDOW, len(layers)
    lo = base // 20
    hi = 2 * base - lo
    if hi >= N - WINDOW:
        hi = N - WINDOW
        lo = 2 * base - hi
    step = (hi - lo) // (L - 1)
    size = [hi - i * step for i in range(L)]
    size[-1] -= sum(size) - L * base
    assert size[-1] >= lo
    return np.stack([top(protected(snapkv_scores(model, x), WINDOW),
                         c + WINDOW) for x, c in zip(layers, size)])


def h2o(model, layers, budget):
    out = []
    for layer in layers:
        s = grouped(model, layer["a"].sum(1)).mean(1)
        out.append(top(protected(s, budget // 2), budget))
    return np.stack(out)


def rkv(model, layers, budget, window=8, weight=0.07):
    out = []
    for layer in layers:
        logit = grouped(model, layer["logit"])[:, :, -window:, :N - window]
        imp = pool(softmax(logit.max(1)).mean(1), 7, "max")
        k = layer["k"] / np.linalg.norm(layer["k"], axis=-1, keepdims=True)
        c = np.einsum("hid,hjd->hij", k, k)
        for h in range(model.n_kv):
            np.fill_diagonal(c[h], 0)
            for r in range(N):
                alike = np.flatnonzero(c[h, r] > 0.5)
                c[h, r, alike[-1] if len(alike) else 0] = 0
        red = softmax(c.mean(1))[:, :N - window]
        s = np.pad(weight * imp - (1 - weight) * red, ((0, 0), (0, window)))
        out.append(top(protected(s, RECENT), budget))
    return np.stack(out)


def selkv_scores(model, layer):
    mass = grouped(model, layer["a"])[:, :, -WINDOW:].sum((1, 2))
    return pool(mass * np.linalg.norm(layer["v"], axis=-1), 5, "avg")


def selkv_per_head(model, layers, budget):
    return np.stack([top(protected(selkv_scores(model, x), RECENT), budget)
                     for x in layers])


def selkv_per_layer(model, layers, budget):
    out = []
    for layer in layers:
        s = selkv_scores(model, layer)
        union = top(protected(s, RECENT), budget).any(0)
        mean = np.where(union, s.mean(0), -np.inf)
        keep = top(protected(mean[None], RECENT), budget)
        out.append(keep.repeat(model.n_kv, 0))
    return np.stack(out)


def fastv(model, layers, budget, whole=1):
    rank = layers[whole - 1]["a"][:, -1].mean(0)[None]
    rest = (len(layers) * budget - whole * N) // (len(layers) - whole)
    out = []
    for i in range(len(layers)):
        keep = top(protected(rank, RECENT), N if i < whole else rest)
        out.append(keep.repeat(model.n_kv, 0))
    return np.stack(out)


KVPRESS = [("snapkv", 70), ("tova", 50), ("keydiff", 50), ("knorm", 50),
           ("streamingllm", 50), ("expected-attention", 50)]
NUMPY = [(snapkv, 70), (adakv, 70), (pyramidkv, 120), (h2o, 50), (rkv, 50),
         (selkv_per_head, 50), (selkv_per_layer, 50), (fastv, 120)]


# ---------------------------------------------------------- what a probe sees

def future_mean(model, layer, n_ahead=512):
    """The mean of the queries after the sinks, under the mean rotation of the
    positions to come. Pairs are half a head apart."""
    mean = layer["q0"][:, SINKS:].mean(1)
    half = model.head_dim // 2
    freq = model.rope_base ** (-2.0 * np.arange(half) / model.head_dim)
    angle = (N + np.arange(n_ahead))[:, None] * freq
    c, s = np.cos(angle).mean(0), np.sin(angle).mean(0)
    a, b = mean[:, :half], mean[:, half:]
    return np.concatenate([a * c - b * s, a * s + b * c], -1)


def seen(model, layers):
    lists = {k: [] for k in ("window", "peak", "column", "band", "mean")}
    for layer in layers:
        a = grouped(model, layer["a"])
        mean = future_mean(model, layer)
        for h in range(model.n_kv):
            rows = a[h].sum(0)
            band = np.zeros((N, BUCKET))
            for j in range(N):
                start = j - j % BUCKET
                band[j, :j - start + 1] = rows[j, start:j + 1]
            lists["window"].append(rows[-WINDOW:])
            lists["peak"].append(
                grouped(model, layer["logit"])[h].max(0)[-WINDOW:])
            lists["column"].append(rows.sum(0))
            lists["band"].append(band)
            lists["mean"].append(grouped(model, mean)[h])
    return {k: ("f32", np.stack(v)) for k, v in lists.items()}


def kept(model, layers, make_press):
    """[case][list][n], or None where float32 might decide otherwise."""
    try:
        masks = [by_kvpress(model, layers, make_press, name, b)
                 for name, b in KVPRESS]
        masks += [f(model, layers, b) for f, b in NUMPY]
    except Tie:
        return None
    return np.stack([m.reshape(-1, N) for m in masks])


def main():
    path, out = sys.argv[1:]
    model = Watched(path)
    assert not model.neighbours and model.head_dim % 2 == 0
    make_press, masks, seed = presses(), None, 0
    while masks is None:
        seed += 1
        tokens = np.random.default_rng(seed).integers(
            0, model.weight("token_embd.weight").shape[0], N)
        layers = model.run(tokens)
        masks = kept(model, layers, make_press)
    golden_file.write(out, {"tokens": ("i32", tokens), "masks": ("i32", masks),
                            **seen(model, layers)})
    print(f"{out}: {len(masks)} cases, {masks.shape[1]} lists, seed {seed}")


if __name__ == "__main__":
    main()
