"""Golden logits, greedy continuations and perplexities of a GGUF model.

An independent forward pass in numpy over the weights as the `gguf` package
dequantises them. It shares no code with the program and is slow and plain on
purpose. Needs: pip install numpy gguf tokenizers.

    reference_forward.py --model M.gguf --austen r-cran-janeaustenr_*.deb
                         --out tests/golden/model/M.golden --work DIR
                         [--windows N]

--windows is how many texts get a perplexity: 20 for the default model, 3 for
the second, whose windows take minutes each.

Interrupted runs go on where they stopped (finished pieces are in --work).
Texts: Jane Austen's novels (public domain) from the Debian package
r-cran-janeaustenr 1.0.0-1, and the questions below.
"""

import argparse
import io
import os
import struct
import subprocess
import tarfile
import zlib

import gguf
import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

import golden_file

N_PROMPTS, PROMPT_TOKENS = 4, 512
N_POSITIONS, N_COLUMNS = 64, 256
N_GREEDY, GREEDY_TOKENS = 20, 64
N_WINDOWS, WINDOW_TOKENS = 20, 1024

QUESTIONS = [
    "What is the capital of France, and what is it known for?",
    "Write a short poem about the sea in winter.",
    "Explain in simple words how a bicycle stays upright.",
    "Give me three ideas for a vegetarian dinner.",
    "Write a Python function that reverses a linked list.",
    "What is the difference between TCP and UDP?",
    "Translate into French: The weather is nice today.",
    "Why is the sky blue?",
    "Summarise the story of Romeo and Juliet in two sentences.",
    "How do I boil an egg so that the yolk stays soft?",
]


class Model:
    """Weights are dequantised when asked for, and kept in `dtype`."""

    def __init__(self, path, dtype):
        self.reader = gguf.GGUFReader(path)
        self.tensors = {t.name: t for t in self.reader.tensors}
        self.dtype = dtype
        self.kept = {}
        self.arch = self.key("general.architecture")
        self.n_layers = self.arch_key("block_count")
        self.n_heads = self.arch_key("attention.head_count")
        self.n_kv = self.arch_key("attention.head_count_kv")
        self.dim = self.arch_key("embedding_length")
        self.head_dim = self.arch_key(
            "attention.key_length", self.dim // self.n_heads
        )
        self.eps = self.arch_key("attention.layer_norm_rms_epsilon")
        self.rope_base = self.arch_key("rope.freq_base", 10000.0)
        # Llama files hold the rows of Q and K so that the two halves of a
        # rotated pair are neighbours; the Qwen families keep them apart.
        self.neighbours = self.arch == "llama"

    def key(self, name, default=None):
        field = self.reader.fields.get(name)
        return default if field is None else field.contents()

    def arch_key(self, name, default=None):
        return self.key(f"{self.arch}.{name}", default)

    def weight(self, name):
        if name not in self.kept:
            t = self.tensors.get(name)
            w = None
            if t is not None:
                w = gguf.quants.dequantize(t.data, t.tensor_type)
                w = w.astype(self.dtype)
            self.kept[name] = w
        return self.kept[name]

    def rmsnorm(self, x, name):
        scale = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.eps)
        return x * scale * self.weight(name)

    def rotate(self, x, pos):
        """x: [tokens, heads, head_dim]."""
        half = self.head_dim // 2
        freq = self.rope_base ** (-2.0 * np.arange(half) / self.head_dim)
        factors = self.weight("rope_freqs.weight")
        if factors is not None:
            freq = freq / factors.astype(np.float64)
        angle = pos[:, None].astype(np.float64) * freq[None, :]
        c = np.cos(angle)[:, None, :].astype(self.dtype)
        s = np.sin(angle)[:, None, :].astype(self.dtype)
        out = np.empty_like(x)
        if self.neighbours:
            a, b = x[..., 0::2], x[..., 1::2]
            out[..., 0::2], out[..., 1::2] = a * c - b * s, a * s + b * c
        else:
            a, b = x[..., :half], x[..., half:]
            out[..., :half], out[..., half:] = a * c - b * s, a * s + b * c
        return out

    def project(self, x, block, name):
        y = x @ self.weight(f"{block}.{name}.weight").T
        bias = self.weight(f"{block}.{name}.bias")
        return y if bias is None else y + bias

    def attention(self, x, block, pos, cache):
        n, d = len(x), self.head_dim
        q = self.project(x, block, "attn_q").reshape(n, self.n_heads, d)
        k = self.project(x, block, "attn_k").reshape(n, self.n_kv, d)
        v = self.project(x, block, "attn_v").reshape(n, self.n_kv, d)
        if f"{block}.attn_q_norm.weight" in self.tensors:
            q = self.rmsnorm(q, f"{block}.attn_q_norm.weight")
            k = self.rmsnorm(k, f"{block}.attn_k_norm.weight")
        q, k = self.rotate(q, pos), self.rotate(k, pos)
        if block in cache:
            k = np.concatenate([cache[block][0], k])
            v = np.concatenate([cache[block][1], v])
        cache[block] = (k, v)
        out = np.empty((n, self.n_heads, d), self.dtype)
        seen = np.arange(len(k))[None, :] <= pos[:, None]
        for h in range(self.n_heads):
            kv = h // (self.n_heads // self.n_kv)
            s = q[:, h] @ k[:, kv].T / np.sqrt(self.dtype(d))
            s = np.where(seen, s, -np.inf)
            p = np.exp(s - s.max(axis=-1, keepdims=True))
            p /= p.sum(axis=-1, keepdims=True)
            out[:, h] = p @ v[:, kv]
        return self.project(out.reshape(n, -1), block, "attn_output")

    def hidden(self, tokens, cache, start=0):
        """The normalised output of the last layer, [tokens, dim]."""
        pos = start + np.arange(len(tokens))
        x = self.weight("token_embd.weight")[tokens]
        for i in range(self.n_layers):
            b = f"blk.{i}"
            h = self.rmsnorm(x, f"{b}.attn_norm.weight")
            x = x + self.attention(h, b, pos, cache)
            h = self.rmsnorm(x, f"{b}.ffn_norm.weight")
            g = self.project(h, b, "ffn_gate")
            u = self.project(h, b, "ffn_up")
            x = x + self.project(g / (1 + np.exp(-g)) * u, b, "ffn_down")
        return self.rmsnorm(x, "output_norm.weight")

    def head(self):
        w = self.weight("output.weight")
        return self.weight("token_embd.weight") if w is None else w


def austen(deb):
    """All novels as one string. The file is a row of records: a length, then
    a zlib stream with an R character vector in R's XDR form."""
    tar = subprocess.run(
        ["dpkg-deb", "--fsys-tarfile", deb], capture_output=True, check=True
    ).stdout
    name = "./usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
    raw = tarfile.open(fileobj=io.BytesIO(tar)).extractfile(name).read()
    at, lines = 0, []
    while at < len(raw):
        stream = zlib.decompressobj()
        data = stream.decompress(raw[at + 4 :])
        at = len(raw) - len(stream.unused_data)
        p = 14
        if struct.unpack(">i", data[2:6])[0] == 3:
            p += 4 + struct.unpack(">i", data[p : p + 4])[0]
        flags, count = struct.unpack(">ii", data[p : p + 8])
        p += 8
        if flags & 255 != 16:
            continue
        for _ in range(count):
            n = struct.unpack(">i", data[p + 4 : p + 8])[0]
            lines.append(data[p + 8 : p + 8 + max(n, 0)].decode())
            p += 8 + max(n, 0)
    return "\n".join(lines)


def tokenizer(model):
    """Close to the model's own; the ids are stored, so close is enough."""
    tokens = model.key("tokenizer.ggml.tokens")
    merges = model.key("tokenizer.ggml.merges")
    t = Tokenizer(
        models.BPE(
            vocab={s: i for i, s in enumerate(tokens)},
            merges=[tuple(m.split(" ")) for m in merges],
        )
    )
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = {s: i for i, s in enumerate(tokens) if s.startswith("<|im_")}
    return (lambda text: t.encode(text).ids), special


def chat(encode, special, question):
    start, end = special["<|im_start|>"], special["<|im_end|>"]
    return (
        [start]
        + encode("system\nYou are a helpful assistant.")
        + [end]
        + encode("\n")
        + [start]
        + encode("user\n" + question)
        + [end]
        + encode("\n")
        + [start]
        + encode("assistant\n")
    )


class Work:
    """Finished pieces, so that a run can be interrupted."""

    def __init__(self, folder):
        self.folder = folder
        os.makedirs(folder, exist_ok=True)

    def piece(self, name, make):
        path = os.path.join(self.folder, name + ".npy")
        if not os.path.exists(path):
            value = np.asarray(make())
            with open(path + ".tmp", "wb") as f:
                np.save(f, value)
            os.rename(path + ".tmp", path)
            print("made", name, flush=True)
        return np.load(path)


def greedy(model, prompt):
    cache, out = {}, []
    x = model.hidden(prompt, cache)[-1:]
    for i in range(GREEDY_TOKENS):
        out.append(int(np.argmax(x[0] @ model.head().T)))
        if i + 1 < GREEDY_TOKENS:
            x = model.hidden([out[-1]], cache, len(prompt) + i)
    return out


def window_nll(model, tokens):
    """Mean over positions 1..n-1 of -log p(token | those before)."""
    x = model.hidden(tokens[:-1], {})
    total = 0.0
    for i in range(0, len(x), 128):
        z = (x[i : i + 128] @ model.head().T).astype(np.float64)
        top = z.max(axis=1)
        lse = top + np.log(np.exp(z - top[:, None]).sum(axis=1))
        want = tokens[i + 1 : i + 1 + len(z)]
        total += float((lse - z[np.arange(len(z)), want]).sum())
    return total / len(x)


def main():
    a = argparse.ArgumentParser()
    for name in ["--model", "--austen", "--out", "--work"]:
        a.add_argument(name, required=True)
    a.add_argument("--windows", type=int, default=N_WINDOWS)
    a = a.parse_args()
    work = Work(a.work)
    model = Model(a.model, np.float32)
    exact = Model(a.model, np.float64)
    encode, special = tokenizer(model)
    ids = work.piece("austen", lambda: encode(austen(a.austen)))
    rng = np.random.default_rng(1)
    n_vocab = model.tensors["token_embd.weight"].shape[1]
    columns = np.sort(rng.choice(n_vocab, N_COLUMNS, replace=False))
    positions = np.sort(rng.choice(PROMPT_TOKENS, N_POSITIONS, replace=False))
    step = len(ids) // (N_PROMPTS + N_WINDOWS + N_GREEDY)
    at = [i * step for i in range(N_PROMPTS + N_WINDOWS + N_GREEDY)]

    prompts = np.stack([ids[i : i + PROMPT_TOKENS] for i in at[:N_PROMPTS]])
    logits = np.stack(
        [
            work.piece(
                f"logits{i}",
                lambda p=p: exact.hidden(p, {})[positions]
                @ exact.head()[columns].T,
            )
            for i, p in enumerate(prompts)
        ]
    )
    exact.kept.clear()

    starts = [chat(encode, special, q) for q in QUESTIONS]
    for i in range(N_GREEDY - len(QUESTIONS)):
        begin = at[N_PROMPTS + N_WINDOWS + i]
        starts.append(list(ids[begin : begin + 40 + 12 * i]))
    length = max(len(s) for s in starts)
    padded = np.array([s + [-1] * (length - len(s)) for s in starts])
    continued = np.stack(
        [
            work.piece(f"greedy{i}", lambda s=s: greedy(model, s))
            for i, s in enumerate(starts)
        ]
    )

    windows = np.stack(
        [
            ids[i : i + WINDOW_TOKENS]
            for i in at[N_PROMPTS : N_PROMPTS + a.windows]
        ]
    )
    nll = np.stack(
        [
            work.piece(f"nll{i}", lambda w=w: window_nll(model, w))
            for i, w in enumerate(windows)
        ]
    )
    golden_file.write(
        a.out,
        {
            "prompts": ("i32", prompts),
            "positions": ("i32", positions),
            "columns": ("i32", columns),
            "logits": ("f32", logits),
            "greedy_prompts": ("i32", padded),
            "greedy": ("i32", continued),
            "windows": ("i32", windows),
            "nll": ("f64", nll),
        },
    )


if __name__ == "__main__":
    main()
