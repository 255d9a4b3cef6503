"""The format of the golden files under tests/golden/model.

A text head, then the arrays' bytes one after another:

    ebb golden 1
    <name> <i32|f32|f64> <dim> [<dim> ...]      one line an array
    <empty line>
    raw little-endian values, in the order of the lines

tests/support/golden.h reads it in C.
"""

import numpy as np

TYPES = {"i32": "<i4", "f32": "<f4", "f64": "<f8"}


def write(path, arrays):
    """arrays: {name: (type, array)}, written in the order of the dict."""
    head = "ebb golden 1\n"
    body = b""
    for name, (kind, array) in arrays.items():
        a = np.ascontiguousarray(array).astype(TYPES[kind])
        head += " ".join([name, kind] + [str(d) for d in a.shape]) + "\n"
        body += a.tobytes()
    with open(path, "wb") as f:
        f.write(head.encode() + b"\n" + body)


def read(path):
    data = open(path, "rb").read()
    end = data.index(b"\n\n")
    lines = data[:end].decode().split("\n")
    if lines[0] != "ebb golden 1":
        raise ValueError(f"{path} is no golden file")
    at, out = end + 2, {}
    for line in lines[1:]:
        name, kind, *dims = line.split(" ")
        shape = [int(d) for d in dims]
        n = int(np.prod(shape)) * np.dtype(TYPES[kind]).itemsize
        out[name] = np.frombuffer(data[at : at + n], TYPES[kind]).reshape(shape)
        at += n
    return out
