"""The trainer's loss and gradient against PyTorch autograd, in float64.

    make gradients [PYTHON=...] [ARGS="MODEL.gguf..."]

Without names: every tiny model of tests/golden/model/tiny. The weights are
read from the model file by the gguf package and the formulas are written here
anew (docs/design, algorithms 1.1 and 1.4), so that only the file is shared.
Exit status 1 if a loss differs by more than 1e-5 or the gradient of a kind of
parameter by more than 1e-3 (relative, in the Euclidean norm).
Needs: pip install torch gguf numpy.
"""
import json
import math
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import torch
    import gguf
    import numpy as np
except ImportError as missing:
    sys.exit(f"gradients: NOT CHECKED: {missing}. This check needs PyTorch: "
             "pip install torch gguf numpy, then make gradients PYTHON=...")

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "build" / "tools" / "dump_gate_gradient"
TINY = ROOT / "tests" / "golden" / "model" / "tiny"
WIDTH, TOKENS, MEMORY = 12, 40, 6.0


def read_dump(path):
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    meta = header.pop("__metadata__")
    out = {}
    for name, t in header.items():
        a, b = t["data_offsets"]
        out[name] = torch.tensor(np.frombuffer(
            data[8 + n + a:8 + n + b], "<f4").astype(np.float64))
    return out, {k: float(v) for k, v in meta.items()}


class Model:
    def __init__(self, path):
        r = gguf.GGUFReader(path)
        self.field = lambda key: r.fields[key].contents() \
            if key in r.fields else None
        self.arch = self.field("general.architecture")
        self.w = {}
        for t in r.tensors:
            values = gguf.quants.dequantize(t.data, t.tensor_type)
            shape = list(reversed([int(x) for x in t.shape]))
            self.w[t.name] = torch.tensor(
                np.asarray(values, dtype=np.float64).reshape(shape))
        key = lambda name: self.field(f"{self.arch}.{name}")
        self.L = key("block_count")
        self.heads = key("attention.head_count")
        self.kv = key("attention.head_count_kv")
        self.eps = key("attention.layer_norm_rms_epsilon")
        q_rows = self.w["blk.0.attn_q.weight"].shape[0]
        self.d = q_rows // self.heads
        half = torch.arange(self.d // 2, dtype=torch.float64)
        self.freq = key("rope.freq_base") ** (-2.0 * half / self.d)
        if "rope_freqs.weight" in self.w:
            self.freq = self.freq / self.w["rope_freqs.weight"]
        if key("rope.scaling.type") == "linear":
            self.freq = self.freq / key("rope.scaling.factor")

    def norm(self, x, weight):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.eps) * \
            weight

    def rope(self, x):
        angle = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * \
            self.freq[None]
        c, s = torch.cos(angle), torch.sin(angle)
        if self.arch == "llama":
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)
        a, b = x.chunk(2, -1)
        return torch.cat((a * c - b * s, a * s + b * c), -1)

    def heads_of(self, i, name, x, count):
        y = x @ self.w[f"blk.{i}.attn_{name}.weight"].T
        if f"blk.{i}.attn_{name}.bias" in self.w:
            y = y + self.w[f"blk.{i}.attn_{name}.bias"]
        y = y.view(len(x), count, self.d).transpose(0, 1)
        if f"blk.{i}.attn_{name}_norm.weight" in self.w:
            y = self.norm(y, self.w[f"blk.{i}.attn_{name}_norm.weight"])
        return y

    def forward(self, tokens, gate=None):
        """Logits, and lambda [L][heads][T] when there is a gate(i, x)."""
        x, lambdas, T = self.w["token_embd.weight"][tokens], [], len(tokens)
        age = torch.arange(T)[:, None] - torch.arange(T)[None]
        for i in range(self.L):
            h = self.norm(x, self.w[f"blk.{i}.attn_norm.weight"])
            q = self.rope(self.heads_of(i, "q", h, self.heads))
            k = self.rope(self.heads_of(i, "k", h, self.kv))
            v = self.heads_of(i, "v", h, self.kv)
            group = self.heads // self.kv
            k, v = (t.repeat_interleave(group, 0) for t in (k, v))
            logits = q @ k.transpose(1, 2) / math.sqrt(self.d)
            if gate:
                lam = gate(i, h).T
                lambdas.append(lam)
                logits = logits + age * lam.repeat_interleave(
                    group, 0)[:, None, :]
            p = logits.masked_fill(age < 0, -torch.inf).softmax(-1)
            o = (p @ v).transpose(0, 1).flatten(1)
            x = x + o @ self.w[f"blk.{i}.attn_output.weight"].T
            h = self.norm(x, self.w[f"blk.{i}.ffn_norm.weight"])
            g = h @ self.w[f"blk.{i}.ffn_gate.weight"].T
            u = h @ self.w[f"blk.{i}.ffn_up.weight"].T
            x = x + (torch.nn.functional.silu(g) * u) @ \
                self.w[f"blk.{i}.ffn_down.weight"].T
        x = self.norm(x, self.w["output_norm.weight"])
        head = self.w.get("output.weight", self.w["token_embd.weight"])
        return x @ head.T, lambdas


def split(flat, L, D, H, m):
    """[(layer, kind, tensor)] of a flat array, as gate.h lays it out."""
    shapes = [("W1", (m, D)), ("c1", (m,)), ("W2", (m, m)), ("c2", (m,)),
              ("W3", (H, m)), ("c3", (H,))]
    at, out = 0, []
    for layer in range(L):
        for kind, shape in shapes:
            n = math.prod(shape)
            out.append((layer, kind, flat[at:at + n].view(shape)))
            at += n
    assert at == len(flat)
    return out


def check(path):
    with tempfile.TemporaryDirectory() as tmp:
        dump = Path(tmp) / "dump.safetensors"
        subprocess.run([TOOL, path, dump, str(WIDTH), str(TOKENS),
                        str(MEMORY), "3"], check=True)
        got, meta = read_dump(dump)
    model = Model(path)
    flat = got["gates"].clone().requires_grad_(True)
    parts = {(layer, kind): t for layer, kind, t in split(
        flat, model.L, int(meta["n_embd"]), model.kv, WIDTH)}
    silu, logsigmoid = torch.nn.functional.silu, torch.nn.functional.logsigmoid

    def gate(i, x):
        p = lambda kind: parts[(i, kind)]
        h1 = silu(x @ p("W1").T + p("c1"))
        h2 = silu(h1 @ p("W2").T + p("c2"))
        return logsigmoid(h2 @ p("W3").T + p("c3"))

    tokens = got["tokens"].long()
    T, lists = len(tokens), model.L * model.kv
    teacher = model.forward(tokens)[0].detach().log_softmax(-1)
    student, lambdas = model.forward(tokens, gate)
    student = student.log_softmax(-1)
    kl = (teacher.exp() * (teacher - student)).sum(-1).mean()
    ntp = -student[:-1].gather(1, tokens[1:, None]).mean()
    age = torch.arange(T)[:, None] - torch.arange(T)[None]
    alive = sum((torch.exp(age * lam[:, None, :]) * (age >= 0)).sum((0, 2))
                for lam in lambdas)
    t = torch.arange(1, T + 1, dtype=torch.float64)
    over = (alive - MEMORY * lists) / torch.clamp(
        t * lists - MEMORY * lists, min=1.0)
    assert (over > 0).any() and (over < 0).any(), "the term tests nothing"
    cap = over[over > 0].mean()
    (kl + ntp + cap).backward()

    bad, worst = [], 0.0
    for name, value in (("kl", kl), ("ntp", ntp), ("cap", cap),
                        ("alive", alive[-1] / lists)):
        value = value.item()
        error = abs(meta[name] - value) / abs(value)
        if not error <= 1e-5:
            bad.append(f"{name}: {meta[name]}, torch {value}")
    shape = (model.L, int(meta["n_embd"]), model.kv, WIDTH)
    for (layer, kind, mine), (_, _, want) in zip(
            split(got["grad"], *shape), split(flat.grad, *shape)):
        error = ((mine - want).norm() / want.norm()).item()
        worst = max(worst, error)
        if not error <= 1e-3:
            bad.append(f"layer {layer} {kind}: {error:.2g}")
    print(f"{'FAIL' if bad else 'ok  '} {Path(path).name}: loss "
          f"{(kl + ntp + cap).item():.6f}, gradients within {worst:.1g}")
    for line in bad:
        print(f"       {line}")
    return not bad


def main():
    torch.set_num_threads(2)
    paths = sys.argv[1:] or sorted(str(p) for p in TINY.glob("*.gguf"))
    if not paths:
        sys.exit("no models")
    sys.exit(not all([check(p) for p in paths]))


if __name__ == "__main__":
    main()
