"""Masks and scores in two forms each: the expression that the program reads, and the same in numpy, written apart from
it. A score's numpy form returns its value and its derivative by s."""
import random
from dataclasses import dataclass, field
from typing import Callable

import numpy as np


@dataclass(frozen=True)
class Mask:
    text: str
    visible: Callable  # of reference.Positions
    tables: dict = field(default_factory=dict, hash=False)  # name -> maker of (rng, batch, heads, sq, sk)
    square: bool = False  # needs as many keys as queries


@dataclass(frozen=True)
class Score:
    text: str
    value: Callable  # of (s, reference.Positions)
    tables: dict = field(default_factory=dict, hash=False)


def ids(rng, n):
    """Document ids 0, 0, 1, 2, 2, 2, ... of random lengths."""
    return np.sort(rng.integers(0, 1 + n // 24, n)).astype("i4")


def integers(low, high, axes):
    """A table of random integers with one extent an axis."""

    def make(rng, batch, heads, sq, sk):
        extents = {"b": batch, "h": heads, "q": sq, "k": sk}
        return rng.integers(low, high, [extents[a] for a in axes]).astype("i4")

    return make


def floats(low, high, axes):
    def make(rng, batch, heads, sq, sk):
        extents = {"b": batch, "h": heads, "q": sq, "k": sk}
        return rng.uniform(low, high, [extents[a] for a in axes]).astype("f4")

    return make


def causal(p):
    return p.k <= p.q + p.sk - p.sq


MASKS = [
    Mask("k <= q + sk - sq", causal),
    Mask("k < 37 || k <= q + sk - sq", lambda p: (p.k < 37) | causal(p)),  # prefix-LM
    Mask("k // 32 == q // 32", lambda p: p.k // 32 == p.q // 32),  # chunks
    Mask("k // 50 == q // 50 and k <= q", lambda p: (p.k // 50 == p.q // 50) & (p.k <= p.q)),
    Mask("k < 4 || k <= q && q - k < 40", lambda p: (p.k < 4) | (p.k <= p.q) & (p.q - p.k < 40)),  # sinks
    Mask("(q - k) % 3 == 0", lambda p: (p.q - p.k) % 3 == 0),  # dilation
    Mask("(q - k) % 4 == 1 && k <= q", lambda p: ((p.q - p.k) % 4 == 1) & (p.k <= p.q)),
    Mask("k <= q && (q - k < 16 || k % 16 == 15)", lambda p: (p.k <= p.q) & ((p.q - p.k < 16) | (p.k % 16 == 15))),
    Mask("(q * 7 + k * 3) % 5 < 2", lambda p: (p.q * 7 + p.k * 3) % 5 < 2),
    Mask("abs(q - k) <= 11 || k == 0", lambda p: (abs(p.q - p.k) <= 11) | (p.k == 0)),
    Mask("min(q, k) % 8 == 0 || max(q, k) < 50", lambda p: (np.minimum(p.q, p.k) % 8 == 0) | (np.maximum(p.q, p.k) < 50)),
    Mask("!(k > q) && !(k % 5 == 2)", lambda p: ~(p.k > p.q) & ~(p.k % 5 == 2)),
    Mask("2 * k <= q + 3", lambda p: 2 * p.k <= p.q + 3),
    Mask("k != q && q >= 5", lambda p: (p.k != p.q) & (p.q >= 5)),
    Mask("0.5 * q >= k", lambda p: 0.5 * p.q >= p.k),
    Mask("k >= sk - 9 || q < 3", lambda p: (p.k >= p.sk - 9) | (p.q < 3)),
    Mask("h % 2 == 0 || k <= q + b", lambda p: (p.h % 2 == 0) | (p.k <= p.q + p.b)),
    Mask("-k > q - 90 and not (q // 7 == k // 7)", lambda p: (-p.k > p.q - 90) & ~(p.q // 7 == p.k // 7)),
    Mask("doc[q] == doc[k]", lambda p: p.table("doc", "q") == p.table("doc", "k"),
         {"doc": lambda rng, b, h, sq, sk: ids(rng, sq)}, square=True),
    Mask("doc[b, q] == doc[b, k] && k <= q", lambda p: (p.table("doc", "bq") == p.table("doc", "bk")) & (p.k <= p.q),
         {"doc": lambda rng, b, h, sq, sk: np.stack([ids(rng, sq) for _ in range(b)])}, square=True),
    Mask("k >= start[q] && k < stop[q]", lambda p: (p.k >= p.table("start", "q")) & (p.k < p.table("stop", "q")),
         {"start": integers(0, 40, "q"), "stop": integers(20, 150, "q")}),
    Mask("qd[q] == kd[k] && kp[k] <= qp[q]",
         lambda p: (p.table("qd", "q") == p.table("kd", "k")) & (p.table("kp", "k") <= p.table("qp", "q")),
         {"qd": lambda rng, b, h, sq, sk: ids(rng, sq), "kd": lambda rng, b, h, sq, sk: ids(rng, sk),
          "qp": integers(0, 30, "q"), "kp": integers(0, 30, "k")}),
    Mask("k < len[b]", lambda p: p.k < p.table("len", "b"), {"len": integers(0, 120, "b")}),
    Mask("q < len[b] && k < len[b] && k <= q",
         lambda p: (p.q < p.table("len", "b")) & (p.k < p.table("len", "b")) & (p.k <= p.q), {"len": integers(0, 120, "b")}),
    Mask("keep[b, k] == 1", lambda p: p.table("keep", "bk") == 1, {"keep": integers(0, 2, "bk")}),
    Mask("q - k <= width[h] && k <= q", lambda p: (p.q - p.k <= p.table("width", "h")) & (p.k <= p.q),
         {"width": integers(0, 60, "h")}),
    Mask("k - q <= reach[b, h]", lambda p: p.k - p.q <= p.table("reach", "bh"), {"reach": integers(-20, 60, "bh")}),
]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


SCORES = [
    Score("s - slope[h] * abs(q - k)", lambda s, p: (s - p.table("slope", "h") * abs(p.q - p.k), 1),  # ALiBi
          {"slope": floats(0.01, 0.3, "h")}),
    Score("s + 0.05 * (k - q)", lambda s, p: (s + 0.05 * (p.k - p.q), 1)),
    Score("s + bias[b, k]", lambda s, p: (s + p.table("bias", "bk"), 1), {"bias": floats(-2, 2, "bk")}),
    Score("s * temperature[b] + shift[q]", lambda s, p: (s * p.table("temperature", "b") + p.table("shift", "q"),
                                                         p.table("temperature", "b")),
          {"temperature": floats(0.5, 2, "b"), "shift": floats(-3, 3, "q")}),
    Score("where(k <= q, s, s - 2)", lambda s, p: (np.where(p.k <= p.q, s, s - 2), 1)),
    Score("where(s > 0, s, 0.1 * s)", lambda s, p: (np.where(s > 0, s, 0.1 * s), np.where(s > 0, 1, 0.1))),
    Score("s + exp(-abs(s))", lambda s, p: (s + np.exp(-abs(s)), 1 - np.sign(s) * np.exp(-abs(s)))),
    Score("log(1 + exp(s))", lambda s, p: (np.log1p(np.exp(s)), sigmoid(s))),
    Score("3 * tanh(s)", lambda s, p: (3 * np.tanh(s), 3 / np.cosh(s) ** 2)),
    Score("min(max(s, -1), 1.5)", lambda s, p: (np.clip(s, -1, 1.5), (s > -1) & (s < 1.5))),
    Score("abs(s)", lambda s, p: (abs(s), np.sign(s))),
    Score("s * s / 4 - s", lambda s, p: (s * s / 4 - s, s / 2 - 1)),
    Score("s / (1 + abs(s))", lambda s, p: (s / (1 + abs(s)), 1 / (1 + abs(s)) ** 2)),
    Score("-s + 0.25 * h - 0.5 * b", lambda s, p: (-s + 0.25 * p.h - 0.5 * p.b, -1)),
    Score("s * (1 + q % 3) / 2 + log(1 + k)", lambda s, p: (s * (1 + p.q % 3) / 2 + np.log(1 + p.k), (1 + p.q % 3) / 2)),
    Score("0.5", lambda s, p: (0.5, 0)),
]

ATOMS = [
    ("k <= q", lambda p: p.k <= p.q), ("q - k < 33", lambda p: p.q - p.k < 33), ("k < 20", lambda p: p.k < 20),
    ("(q + k) % 2 == 0", lambda p: (p.q + p.k) % 2 == 0), ("k // 16 != q // 16", lambda p: p.k // 16 != p.q // 16),
    ("k > q + sk - sq", lambda p: p.k > p.q + p.sk - p.sq), ("q % 9 >= 4", lambda p: p.q % 9 >= 4),
    ("3 * k - q >= 41", lambda p: 3 * p.k - p.q >= 41), ("k == q", lambda p: p.k == p.q),
    ("k >= sk - 30", lambda p: p.k >= p.sk - 30), ("(k - 2 * q) % 7 < 3", lambda p: (p.k - 2 * p.q) % 7 < 3),
]


def combination(rng: random.Random, depth):
    """A random boolean combination of comparisons."""
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(ATOMS)
    kind = rng.choice(("and", "or", "or", "not", "and"))
    text, left = combination(rng, depth - 1)
    if kind == "not":
        return rng.choice(("!({})", "not ({})")).format(text), lambda p: ~left(p)
    other, right = combination(rng, depth - 1)
    spelling = rng.choice({"and": ("&&", "and"), "or": ("||", "or")}[kind])
    combine = np.logical_and if kind == "and" else np.logical_or
    return f"({text}) {spelling} ({other})", lambda p: combine(left(p), right(p))


def combinations(count, seed):
    rng = random.Random(seed)
    return [Mask(*combination(rng, 3)) for _ in range(count)]
