#!/usr/bin/env python3
"""Writes the seed files of the model fuzz target: one small model of each
family, all weights zero.

    python tests/tools/make_model_corpus.py tests/fuzz/corpus/model
"""
import os
import struct
import sys

U32, F32, STR = 4, 6, 8
E, F, V = 64, 32, 8
# Type numbers of the format, with the values and bytes of a block.
TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18),
         "Q4_1": (3, 32, 20), "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24),
         "Q8_0": (8, 32, 34), "BF16": (30, 1, 2)}

GLOBALS = [("token_embd.weight", "Q8_0", [E, V]),
           ("output_norm.weight", "F32", [E])]
LAYER = [("attn_norm.weight", "F32", [E]), ("attn_q.weight", "Q4_1", [E, E]),
         ("attn_k.weight", "Q5_0", [E, E]), ("attn_v.weight", "Q5_1", [E, E]),
         ("attn_output.weight", "Q4_0", [E, E]), ("ffn_norm.weight", "F32", [E]),
         ("ffn_gate.weight", "Q8_0", [E, F]), ("ffn_up.weight", "BF16", [E, F]),
         ("ffn_down.weight", "F16", [F, E])]
EXTRA = {"llama": [], "qwen2": [(f"attn_{x}.bias", "F32", [E]) for x in "qkv"],
         "qwen3": [(f"attn_{x}_norm.weight", "F32", [E]) for x in "qk"]}


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def kv(key, kind, value):
    plain = {U32: "<I", F32: "<f"}
    value = text(value) if kind == STR else struct.pack(plain[kind], value)
    return text(key) + struct.pack("<I", kind) + value


def tensor(name, dims, kind, offset):
    return (text(name) + struct.pack("<I", len(dims))
            + b"".join(struct.pack("<Q", d) for d in dims)
            + struct.pack("<IQ", kind, offset))


def model(arch):
    keys = {"block_count": 1, "context_length": 32, "embedding_length": E,
            "feed_forward_length": F, "attention.head_count": 1}
    kvs = [kv("general.architecture", STR, arch)]
    kvs += [kv(f"{arch}.{k}", U32, n) for k, n in keys.items()]
    kvs.append(kv(f"{arch}.attention.layer_norm_rms_epsilon", F32, 1e-5))
    kvs.append(kv(f"{arch}.rope.freq_base", F32, 1e4))
    tensors, at = [], 0
    layer = [(f"blk.0.{n}", t, d) for n, t, d in LAYER + EXTRA[arch]]
    for name, kind, dims in GLOBALS + layer:
        number, values, size = TYPES[kind]
        tensors.append(tensor(name, dims, number, at))
        n = dims[0] * (dims[1] if len(dims) > 1 else 1)
        at += (n // values * size + 31) // 32 * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(kvs))
    head += b"".join(kvs + tensors)
    return head + bytes(-len(head) % 32 + at)


def main():
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    for arch in EXTRA:
        with open(os.path.join(out, arch + ".gguf"), "wb") as f:
            f.write(model(arch))


if __name__ == "__main__":
    main()
