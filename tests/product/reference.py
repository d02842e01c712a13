"""Standard attention in float64, straight from its definition: the whole score matrix, one formula a line.

    S = score(softcap(scale Q K^T)),  P = softmax(S where visible),  O = P V,  LSE = log sum exp S
    dV = P^T dO,  dP = dO V^T,  dS = P (dP - rowsum(dO O)),  dQ = scale dX K,  dK = scale dX^T Q
    with dX = dS score' softcap'

A row that sees nothing has O = 0, LSE = -inf and zero gradients. Tensors are (batch, sequence, heads, dim).
"""
from dataclasses import dataclass

import numpy as np


class Positions:
    """The variables of expressions, shaped to broadcast over (batch, query head, query, key)."""

    def __init__(self, batch, heads, sq, sk, tables):
        self.b = np.arange(batch).reshape(-1, 1, 1, 1)
        self.h = np.arange(heads).reshape(1, -1, 1, 1)
        self.q = np.arange(sq).reshape(1, 1, -1, 1)
        self.k = np.arange(sk).reshape(1, 1, 1, -1)
        self.sq, self.sk = sq, sk
        self.tables = tables

    def table(self, name, axes):
        """name[q], name[k], name[h], name[b], or with axes such as "bk" name[b, k]."""
        values = self.tables[name]
        values = values.astype("f8") if values.dtype.kind == "f" else values.astype("i8")
        shape = [1, 1, 1, 1]
        for axis, extent in zip(axes, values.shape):
            shape["bhqk".index(axis)] = extent
        return values.reshape(shape)


@dataclass
class Results:
    o: np.ndarray
    lse: np.ndarray  # (batch, query heads, queries)
    dq: np.ndarray = None
    dk: np.ndarray = None
    dv: np.ndarray = None
    ds_rows: np.ndarray = None  # sum over keys of |dS|, (batch, query heads, queries): how large the terms of dQ are


def attention(q, k, v, do=None, scale=None, softcap=0.0, visible=None, score=None, tables=None):
    """`visible(positions)` is true where a query sees a key; `score(s, positions)` returns the score and its derivative
    by s. Either may be None."""
    batch, sq, heads, dim = q.shape
    sk, group = k.shape[1], heads // k.shape[2]
    at = Positions(batch, heads, sq, sk, tables or {})
    scale = 1 / np.sqrt(dim) if scale is None else scale
    q, k, v = (np.moveaxis(t, 2, 1) for t in (q, k, v))
    wide_k, wide_v = np.repeat(k, group, 1), np.repeat(v, group, 1)

    shape = (batch, heads, sq, sk)
    s = scale * (q @ wide_k.swapaxes(2, 3))
    slope = np.ones(shape)
    if softcap:
        t = np.tanh(s / softcap)
        s, slope = softcap * t, 1 - t * t
    if score:
        s, by_s = score(s, at)
        slope = slope * by_s
    s = np.broadcast_to(s, shape)
    seen = np.broadcast_to(visible(at) if visible else True, shape)
    s = np.where(seen, s, -np.inf)
    top = s.max(3, keepdims=True, initial=-np.inf)
    p = np.exp(s - np.where(np.isfinite(top), top, 0))
    total = p.sum(3, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.where(np.isfinite(top), top, 0) + np.log(total))[..., 0]
    p = p / np.where(total == 0, 1, total)
    o = p @ wide_v
    results = Results(np.moveaxis(o, 1, 2), lse)
    if do is None:
        return results

    do = np.moveaxis(do, 2, 1)
    ds = p * (do @ wide_v.swapaxes(2, 3) - (do * o).sum(3, keepdims=True))
    results.ds_rows = np.abs(ds).sum(3)
    dx = np.where(seen, ds * slope, 0) * scale

    def of_group(wide):  # a kv head's gradient is the sum over the query heads that read it
        return np.moveaxis(wide.reshape(batch, heads // group, group, sk, wide.shape[3]).sum(2), 1, 2)

    results.dq = np.moveaxis(dx @ wide_k, 1, 2)
    results.dk = of_group(dx.swapaxes(2, 3) @ q)
    results.dv = of_group(p.swapaxes(2, 3) @ do)
    return results
