#!/usr/bin/env python3
"""Writes tests/golden/quant/blocks.bin: random blocks of every tensor type
and what the dequantiser of the `gguf` Python package makes of them.

    python tests/tools/make_quant_golden.py tests/golden/quant/blocks.bin

Needs numpy and gguf. The file is a list of records, little-endian:
u32 type, u32 blocks, the blocks' bytes, then one float32 per element.
"""
import struct
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as T
from gguf.quants import dequantize

# Where the f16 scales of a block stand.
SCALES = {
    T.Q8_0: [0], T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2],
    T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
}
# Zeros, the smallest and largest subnormal, the smallest normal, the largest
# number, both signs, infinity and NaN.
EXTREME = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x8400, 0x7BFF,
           0xFBFF, 0x7C00, 0xFC00, 0x7E00]


def blocks_of(t, rng):
    elems, size = GGML_QUANT_SIZES[t]
    count = {1: 256, 32: 28, 256: 24}[elems]
    raw = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for i in range(count):
        for k, at in enumerate(SCALES.get(t, [])):
            # Ordinary scales in half of the blocks, the rest from the list.
            bits = int(np.float16(rng.normal() * 0.05).view(np.uint16))
            if i % 2 == 1:
                bits = EXTREME[(i // 2 + 5 * k) % len(EXTREME)]
            raw[i, at:at + 2] = list(struct.pack("<H", bits))
    return raw


def main():
    rng = np.random.default_rng(20240229)
    with open(sys.argv[1], "wb") as f, np.errstate(all="ignore"):
        for t in [T.F32, T.F16, T.BF16, *SCALES]:
            raw = blocks_of(t, rng)
            flat = raw.reshape(1, -1)
            x = dequantize(flat, t).astype("<f4")
            assert x.size == raw.shape[0] * GGML_QUANT_SIZES[t][0]
            f.write(struct.pack("<II", int(t), raw.shape[0]))
            f.write(raw.tobytes() + x.tobytes())


main()
