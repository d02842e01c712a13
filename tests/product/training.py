"""Trainings through the built program: options in; metrics, checkpoints and text out."""
import hashlib
import json
import struct
import subprocess

import numpy as np

from product import tool

# A model that a test can afford.
MICRO = ("--width", 16, "--layers", 2, "--heads", 2, "--hidden", 24, "--context", 16, "--warmup", 3)


def write_text(path, size=4000, seed=1):
    """Words of few letters: something to learn."""
    rng = np.random.default_rng(seed)
    words = ["tile", "row", "the", "a", "warp", "sum", "key"]
    text = " ".join(words[i] for i in rng.integers(0, len(words), size))
    path.write_text(text[:size])
    return path


def write_tokens(path, tokens):
    path.write_bytes(np.asarray(tokens, "<u2").tobytes())
    return path


def train(workspace, *options, ranks=1, timeout=60, env=None):
    """`options` are names and values in turn, and --json; the last value of a name counts. On the CPU unless they say
    otherwise."""
    values = {"--target": "cpu"} | dict(zip(*[iter(o for o in options if o != "--json")] * 2, strict=True))
    arguments = ["train", *[part for pair in values.items() for part in pair]] + ["--json"] * ("--json" in options)
    if ranks > 1:
        arguments = ["launch", "-n", ranks, "--", tool.program(), *arguments]
    # One thread a rank: the machine is shared, and rounding does not depend on its cores.
    return workspace(*arguments, timeout=timeout, env={"TILEWRIGHT_THREADS": 1, **(env or {})})


def metrics(path, key="loss"):
    """The lines of a metrics file that have this key."""
    return [line for line in map(json.loads, path.read_text().splitlines()) if key in line]


def safetensors(path):
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        data = raw[8 + size + begin : 8 + size + end]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(data, "<u2").astype("u4") << 16).view("f4")
        else:
            values = np.frombuffer(data, {"F32": "<f4", "F64": "<f8"}[entry["dtype"]])
        found[name] = values.reshape(entry["shape"])
    return found


def newest(folder):
    return sorted(folder.glob("step-*"))[-1]


def parameters(folder):
    return safetensors(newest(folder) / "model.safetensors")


def digest(folder):
    """Of every parameter's bits."""
    text = "".join(name + values.tobytes().hex() for name, values in sorted(parameters(folder).items()))
    return hashlib.sha256(text.encode()).hexdigest()


def difference(a, b):
    """Largest, relative to the largest parameter."""
    assert a.keys() == b.keys()
    largest = max(np.abs(v).max() for v in a.values())
    return max(np.abs(a[name] - b[name]).max() for name in a) / largest
