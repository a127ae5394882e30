#!/usr/bin/python3
"""Reads part files with Hugging Face's library, and prints each file and its tensors by name: type, shape, elements.

read_with_safetensors.py FILE...
"""
import struct
import sys

from safetensors import deserialize, safe_open


def elements(dtype, data):
    if dtype == "BF16":  # the upper half of an fp32
        data = b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))
    size, letter = (8, "d") if dtype == "F64" else (4, "f")
    return struct.unpack(f"<{len(data) // size}{letter}", data)


for path in sys.argv[1:]:
    with safe_open(path, framework="numpy") as part:
        about = part.metadata()
        names = set(part.keys())
        shapes = {name: part.get_slice(name).get_shape() for name in names}
    print("file", about["format"], about["step"], about["rank"], len(names))
    with open(path, "rb") as file:
        tensors = deserialize(file.read())
    for name, tensor in sorted(tensors, key=lambda pair: pair[0]):
        assert tensor["shape"] == shapes[name], name
        values = elements(tensor["dtype"], bytes(tensor["data"]))
        print(name, tensor["dtype"], *tensor["shape"], *(int(value) for value in values))
