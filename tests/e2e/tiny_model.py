"""A model that is quick, for tests in which only the cache matters: four small
layers of random weights under the vocabulary and the chat template of a real
model. Its answers are nonsense, and the same every time.

Written byte by byte: the package `gguf` takes a minute to read a vocabulary.
"""
import json
import struct
from pathlib import Path

import numpy as np

LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN, CONTEXT = 4, 1, 1, 64, 64, 2048
LISTS = LAYERS * KV_HEADS
# f16 keys and values, bias, retention, standing and positions of a token.
TOKEN_BYTES = LISTS * (2 * HEAD_DIM * 2 + 20)

UINT32, FLOAT32, STRING, ARRAY = 4, 6, 8, 9
SIZE = {0: 1, 1: 1, 2: 2, 3: 2, UINT32: 4, 5: 4, FLOAT32: 4, 7: 1, 10: 8,
        11: 8, 12: 8}
ALIGN = 32


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def number(name, kind, value):
    return string(name) + struct.pack("<I", kind) + struct.pack(
        "<f" if kind == FLOAT32 else "<I", value)


class Pairs:
    """The metadata of a GGUF file as bytes, by name."""

    def __init__(self, path):
        self.data = Path(path).read_bytes()
        magic, version, _, n = struct.unpack_from("<4sIQQ", self.data)
        assert magic == b"GGUF" and version == 3
        self.at, self.pair, self.length = 24, {}, {}
        for _ in range(n):
            begin = self.at
            name = self.bytes().decode()
            self.length[name] = self.skip(self.take("<I"))
            self.pair[name] = self.data[begin:self.at]

    def take(self, form):
        value, = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def bytes(self):
        size = self.take("<Q")
        self.at += size
        return self.data[self.at - size:self.at]

    def skip(self, kind):
        """Past a value; how many items it has."""
        if kind == STRING:
            self.bytes()
            return 1
        if kind != ARRAY:
            self.at += SIZE[kind]
            return 1
        item, n = self.take("<I"), self.take("<Q")
        if item != STRING:
            self.at += SIZE[item] * n
            return n
        for _ in range(n):
            self.bytes()
        return n


def tensors(n_vocab, rng):
    """(name, array) of each, in the order of the file."""
    wide, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM

    def matrix(rows, columns):
        return rng.normal(0, columns ** -0.5, (rows, columns))

    yield "token_embd.weight", matrix(n_vocab, wide)
    for i in range(LAYERS):
        for name, value in (
                ("attn_norm", np.ones(wide)), ("attn_q", matrix(wide, wide)),
                ("attn_k", matrix(kv, wide)), ("attn_v", matrix(kv, wide)),
                ("attn_output", matrix(wide, wide)),
                ("ffn_norm", np.ones(wide)), ("ffn_gate", matrix(FFN, wide)),
                ("ffn_up", matrix(FFN, wide)),
                ("ffn_down", matrix(wide, FFN))):
            yield f"blk.{i}.{name}.weight", value
    yield "output_norm.weight", np.ones(wide)


def write(path, source, seed=1):
    """path gets the model; source is the GGUF file that lends its words."""
    theirs = Pairs(source)
    kept = [v for k, v in theirs.pair.items() if k.startswith("tokenizer.")]
    shape = [("block_count", LAYERS), ("context_length", CONTEXT),
             ("embedding_length", HEADS * HEAD_DIM),
             ("feed_forward_length", FFN), ("attention.head_count", HEADS),
             ("attention.head_count_kv", KV_HEADS),
             ("rope.dimension_count", HEAD_DIM)]
    pairs = [string("general.architecture") + struct.pack("<I", STRING) +
             string("llama"),
             *[number("llama." + k, UINT32, v) for k, v in shape],
             number("llama.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5),
             number("llama.rope.freq_base", FLOAT32, 10000.0), *kept]
    infos, data = [], b""
    n_vocab = theirs.length["tokenizer.ggml.tokens"]
    for name, value in tensors(n_vocab, np.random.default_rng(seed)):
        infos.append(string(name) + struct.pack("<I", value.ndim) + b"".join(
            struct.pack("<Q", d) for d in reversed(value.shape)) +
            struct.pack("<IQ", 0, len(data)))
        data += value.astype("<f4").tobytes()
        data += b"\0" * (-len(data) % ALIGN)
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(infos), len(pairs))
    head += b"".join(pairs) + b"".join(infos)
    Path(path).write_bytes(head + b"\0" * (-len(head) % ALIGN) + data)
    return Path(path)


def write_gates(path, seed=1, hidden=8):
    """Random gates of the simple type for it: half-lives from a few tokens to
    some hundreds, so that every ranking is a mixture."""
    wide, rng = HEADS * HEAD_DIM, np.random.default_rng(seed)
    header, data = {"__metadata__": {"gate": "rg"}}, b""
    for layer in range(LAYERS):
        for name, value in (
                ("linear1.weight", rng.normal(0, wide ** -0.5,
                                              (hidden, wide))),
                ("linear1.bias", np.zeros(hidden)),
                ("linear2.weight", rng.normal(0, 2, (KV_HEADS, hidden))),
                ("bias", np.full(KV_HEADS, 4.0))):
            raw = value.astype("<f4").tobytes()
            header[f"model.layers.{layer}.self_attn.retention_gate.{name}"] = {
                "dtype": "F32", "shape": list(value.shape),
                "data_offsets": [len(data), len(data) + len(raw)]}
            data += raw
    text = json.dumps(header).encode()
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)
    return Path(path)
