#!/usr/bin/env python3
"""Makes the expected ids of tests/unit/runtime/text/test_tokenizer_golden.c.

The reference is the Hugging Face `tokenizers` library, built from the tokens
and merges in the model file itself; the rule to normalise and to split is that
of the model's own tokenizer. The test lines come from a seeded generator over
tests/golden/tokenizer/fragments.txt, which tests/unit/runtime/text/
golden_lines.h repeats in C, so that only a hash per line is stored: FNV-1a of
32 bits over the ids as little-endian 32-bit numbers, those of the line as
plain text, then -1, then those with special tokens recognised. A sample of
lines is stored with its ids, to be read.

    make_tokenizer_golden.py MODELS_DIR            writes the golden files
    make_tokenizer_golden.py MODELS_DIR --line N   shows what line N should be

Needs: pip install gguf tokenizers. Made with tokenizers 0.23.3, gguf 0.19.0.
"""
import argparse
import os
import re

import gguf
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models
from tokenizers import normalizers, pre_tokenizers

N_LINES = 20480
SAMPLE_EVERY = 160
MASK = (1 << 64) - 1
HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..", "golden", "tokenizer")

MODELS = {
    "smollm": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "qwen2": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
}

# The split rule of Qwen2's tokenizer.
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
         r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


class Rng:
    """splitmix64."""

    def __init__(self, seed):
        self.s = seed & MASK

    def next(self):
        self.s = (self.s + 0x9E3779B97F4A7C15) & MASK
        z = self.s
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def below(self, n):
        return self.next() % n


def unescape(line):
    def one(m):
        s = m.group(0)
        if s[1:2] == b"x":
            return bytes([int(s[2:], 16)])
        if s[1:2] == b"u":
            return chr(int(s[3:-1], 16)).encode()
        return {b"\\n": b"\n", b"\\r": b"\r", b"\\t": b"\t",
                b"\\\\": b"\\"}[s]
    return re.sub(rb"\\x[0-9a-f]{2}|\\u\{[0-9A-F]+\}|\\[nrt\\]", one, line)


def read_fragments():
    parts = {}
    with open(os.path.join(GOLDEN, "fragments.txt"), "rb") as f:
        for line in f.read().split(b"\n"):
            if not line or line.startswith(b"# "):
                continue
            if re.fullmatch(rb"\[[a-z]+\]", line):
                section = parts.setdefault(line[1:-1].decode(), [])
            elif section is parts.get("range"):
                section.append(tuple(int(x, 16) for x in line.split()))
            else:
                section.append(unescape(line))
    return parts


def char(rng, ranges):
    lo, hi = ranges[rng.below(len(ranges))]
    c = lo + rng.below(hi - lo + 1)
    return b"" if 0xD800 <= c <= 0xDFFF else chr(c).encode()


def chars(rng, ranges):
    lo, hi = ranges[rng.below(len(ranges))]
    out = b""
    for _ in range(1 + rng.below(6)):
        c = lo + rng.below(hi - lo + 1)
        out += b"" if 0xD800 <= c <= 0xDFFF else chr(c).encode()
    return out


def slice_of(rng, s):
    begin = rng.below(len(s))
    return s[begin:begin + rng.below(len(s) - begin + 1)]


def part(rng, p, whole):
    kind = rng.below(16)
    if kind <= 3:
        return whole[rng.below(len(whole))]
    if kind <= 6:
        return slice_of(rng, whole[rng.below(len(whole))])
    if kind == 7:
        return p["special"][rng.below(len(p["special"]))]
    if kind == 8:
        return slice_of(rng, p["special"][rng.below(len(p["special"]))])
    if kind <= 10:
        return chars(rng, p["range"])
    if kind == 11:
        return b"".join(b"%d" % rng.below(10)
                        for _ in range(1 + rng.below(7)))
    if kind == 12:
        return b"".join(p["space"][rng.below(len(p["space"]))]
                        for _ in range(1 + rng.below(6)))
    if kind == 13:
        return bytes(rng.below(256) for _ in range(1 + rng.below(3)))
    if kind == 14:
        return bytes(32 + rng.below(95) for _ in range(1 + rng.below(8)))
    c = char(rng, p["range"])
    return c * (1 + rng.below(20))


def make_line(p, i):
    """Line i: first every fragment as it is, then mixtures."""
    whole = p["text"] + p["code"]
    if i < len(whole):
        return whole[i]
    rng = Rng(i * 1000003)
    n_parts = 1 + rng.below(6)
    return b"".join(part(rng, p, whole) for _ in range(n_parts))


def reference(rule, path):
    """Two tokenizers: without and with special tokens recognised."""
    r = gguf.GGUFReader(path)

    def field(name):
        return r.fields["tokenizer.ggml." + name].contents()
    tokens, types = field("tokens"), field("token_type")
    assert field("model") == "gpt2" and field("pre") == rule
    vocab = {t: i for i, t in enumerate(tokens)}
    merges = [tuple(m.split(" ")) for m in field("merges")]
    both = []
    for with_special in (False, True):
        t = Tokenizer(models.BPE(vocab=vocab, merges=merges))
        if rule == "smollm":
            t.pre_tokenizer = pre_tokenizers.Sequence([
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False,
                                         use_regex=True)])
        else:
            t.normalizer = normalizers.NFC()
            t.pre_tokenizer = pre_tokenizers.Sequence([
                pre_tokenizers.Split(Regex(QWEN2), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False,
                                         use_regex=False)])
        if with_special:
            t.add_special_tokens([
                AddedToken(s, special=True, normalized=False)
                for s, ty in zip(tokens, types) if ty in (2, 3, 4)])
        both.append(t)
    return both


def encode(both, line):
    text = line.decode("utf-8", "replace")
    return [t.encode(text, add_special_tokens=False).ids for t in both]


def fnv(ids):
    h = 0x811C9DC5
    for i in ids:
        for b in (i & 0xFFFFFFFF).to_bytes(4, "little"):
            h = ((h ^ b) * 0x01000193) & 0xFFFFFFFF
    return h


def head(what):
    return "# %s; made by tests/tools/make_tokenizer_golden.py\n" % what


def write(rule, both, p):
    with open(os.path.join(GOLDEN, rule + ".hash"), "w") as hashes, \
            open(os.path.join(GOLDEN, rule + ".sample"), "w") as sample:
        hashes.write(head("one hash for each line, tokenizers %s"
                          % tokenizers.__version__))
        sample.write(head("line number: text, plain ids, special ids"))
        for i in range(N_LINES):
            line = make_line(p, i)
            plain, special = encode(both, line)
            hashes.write("%08x\n" % fnv(plain + [-1] + special))
            if i % SAMPLE_EVERY == 0:
                sample.write("%d: %s\n" % (i, ascii(line)[2:-1]))
                sample.write("  %s\n" % " ".join(map(str, plain)))
                sample.write("  %s\n" % " ".join(map(str, special)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("models", help="folder with the model files")
    ap.add_argument("--line", type=int)
    args = ap.parse_args()
    p = read_fragments()
    for rule, name in MODELS.items():
        both = reference(rule, os.path.join(args.models, name))
        if args.line is None:
            write(rule, both, p)
            continue
        line = make_line(p, args.line)
        print(rule, line)
        for what, ids in zip(("plain:", "special:"), encode(both, line)):
            print(what, ids)


if __name__ == "__main__":
    main()
