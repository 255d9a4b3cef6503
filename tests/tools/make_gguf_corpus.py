#!/usr/bin/env python3
"""Writes the seed files of the GGUF fuzz target: small valid files, and ones
with a single fault each (their names begin with "bad_").

    python tests/tools/make_gguf_corpus.py tests/fuzz/corpus/gguf

Needs only the standard library: the files are put together by hand, so that
they do not depend on what another writer refuses to write.
"""
import os
import struct
import sys

U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
FORMAT = {U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i",
          F32: "<f", BOOL: "<B", U64: "<Q", I64: "<q", F64: "<d"}


def text(s):
    b = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(b)) + b


def scalar(t, v):
    return text(v) if t == STR else struct.pack(FORMAT[t], v)


def kv(key, t, v):
    return text(key) + struct.pack("<I", t) + scalar(t, v)


def arr(key, t, values):
    return (text(key) + struct.pack("<IIQ", ARR, t, len(values))
            + b"".join(scalar(t, v) for v in values))


def tensor(name, dims, t, offset):
    return (text(name) + struct.pack("<I", len(dims))
            + b"".join(struct.pack("<Q", d) for d in dims)
            + struct.pack("<IQ", t, offset))


def header(n_tensors, n_kv, version=3, magic=b"GGUF"):
    return magic + struct.pack("<IQQ", version, n_tensors, n_kv)


def gguf(kvs, tensors, data_bytes, version=3, align=32):
    b = header(len(tensors), len(kvs), version) + b"".join(kvs + tensors)
    if tensors:
        b += b"\0" * (-len(b) % align) + bytes(
            i * 7 % 251 for i in range(data_bytes))
    return b


SOME_KV = [
    kv("general.architecture", STR, "llama"),
    kv("a.u8", U8, 200), kv("a.i8", I8, -3), kv("a.u16", U16, 65535),
    kv("a.i16", I16, -30000), kv("a.u32", U32, 2**32 - 1),
    kv("a.i32", I32, -2**31), kv("a.u64", U64, 2**64 - 1),
    kv("a.i64", I64, -2**63), kv("a.f32", F32, 1e-5), kv("a.f64", F64, 1e300),
    kv("a.bool", BOOL, 1),
    arr("t.strings", STR, ["a", "", "bc", b"\xff\x00z"]),
    arr("t.i32", I32, [1, -1, 3]), arr("t.f32", F32, [0.5, float("inf")]),
    arr("t.bool", BOOL, [0, 1, 1]), arr("t.none", STR, []),
    arr("t.u64", U64, [1, 2**40]), arr("t.f64", F64, [1.5]),
]
# Type number, elements and bytes of a block.
TYPES = [(0, 1, 4), (1, 1, 2), (30, 1, 2), (8, 32, 34), (2, 32, 18),
         (3, 32, 20), (6, 32, 22), (7, 32, 24), (12, 256, 144),
         (13, 256, 176), (14, 256, 210)]


def all_types():
    out, at = [], 0
    for t, elems, size in TYPES:
        out.append(tensor(f"blk.0.t{t}.weight", [elems, 2], t, at))
        at += (2 * size + 31) // 32 * 32
    return gguf(SOME_KV, out, at)


def files():
    one = [tensor("w", [4, 2], 0, 0)]
    arch = [kv("general.architecture", STR, "llama")]
    yield "empty_lists", header(0, 0)
    yield "v2", gguf(arch, one, 32, version=2)
    yield "keys", gguf(SOME_KV, [], 0)
    yield "all_types", all_types()
    yield "four_dims", gguf([], [tensor("w", [2, 3, 4, 5], 1, 0)], 240)
    yield "alignment_64", gguf([kv("general.alignment", U32, 64)],
                               [tensor("a", [8], 0, 0),
                                tensor("b", [8], 0, 64)], 96, align=64)
    yield "fingerprint", gguf(
        arch + [kv("llama.block_count", U32, 1),
                kv("llama.embedding_length", U32, 8),
                kv("llama.attention.head_count_kv", U32, 1)],
        [tensor("token_embd.weight", [8, 2], 1, 0),
         tensor("output_norm.weight", [8], 0, 32)], 64)
    yield "bad_magic", b"GGML" + header(0, 0)[4:]
    yield "bad_v1", header(0, 0, version=1)
    yield "bad_big_endian", b"GGUF" + struct.pack(">IQQ", 3, 0, 0)
    yield "bad_n_kv", header(0, 2**60)
    yield "bad_n_tensors", header(2**60, 0)
    yield "bad_key_length", header(0, 1) + struct.pack("<Q", 2**64 - 8) + b"ab" * 9
    yield "bad_string_length", (header(0, 1) + text("k")
                                + struct.pack("<IQ", STR, 2**63) + b"abc")
    yield "bad_array_length", (header(0, 1) + text("k")
                               + struct.pack("<IIQ", ARR, U64, 2**61) + b"abc")
    yield "bad_nested_array", (header(0, 1) + text("k")
                               + struct.pack("<IIQ", ARR, ARR, 1)
                               + struct.pack("<IQ", U8, 0))
    yield "bad_bool", gguf([kv("k", BOOL, 2)], [], 0)
    yield "bad_value_type", header(0, 1) + text("k") + struct.pack("<IQ", 13, 0)
    yield "bad_key_twice", gguf(arch * 2, [], 0)
    yield "bad_alignment", gguf([kv("general.alignment", U32, 24)], one, 32)
    yield "bad_dims_overflow", gguf([], [tensor("w", [2**40] * 4, 0, 0)], 32)
    yield "bad_n_dims", gguf([], [tensor("w", [1] * 5, 0, 0)], 32)
    yield "bad_zero_dim", gguf([], [tensor("w", [4, 0], 0, 0)], 32)
    yield "bad_block", gguf([], [tensor("w", [33], 8, 0)], 64)
    yield "bad_tensor_type", gguf([], [tensor("w", [256], 10, 0)], 96)
    yield "bad_offset", gguf([], [tensor("w", [4, 2], 0, 64)], 64)
    yield "bad_offset_huge", gguf([], [tensor("w", [8], 0, 2**64 - 32)], 32)
    yield "bad_offset_unaligned", gguf([], [tensor("w", [8], 0, 4)], 64)
    yield "bad_tensor_twice", gguf([], [tensor("w", [8], 0, 0),
                                        tensor("w", [8], 0, 32)], 64)
    yield "bad_overlap", gguf([], [tensor("v", [16], 0, 0),
                                   tensor("w", [8], 0, 32)], 64)


def main():
    os.makedirs(sys.argv[1], exist_ok=True)
    for name, data in files():
        with open(os.path.join(sys.argv[1], name + ".gguf"), "wb") as f:
            f.write(data)


main()
