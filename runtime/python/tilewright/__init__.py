"""Attention, compiled for the problem at hand.

    o = tilewright.flash_attn_func(q, k, v, causal=True)
    o = tilewright.attention(q, k, v, mask="doc[q] == doc[k] and k <= q", tables={"doc": documents})

Tensors are PyTorch's (with gradients, on the current stream), NumPy's, or anything that speaks DLPack: CuPy's, JAX's.
Nothing is copied and no call waits for a GPU. The first call of a kind compiles its kernels, or finds them in the cache
on disk; further ones cost microseconds. Errors are :class:`TilewrightError`; messages go to the logger "tilewright".
"""
from __future__ import annotations

import sys
from typing import Any, Mapping, Optional

from ._library import Spec, TilewrightError

__all__ = ["TilewrightError", "attention", "flash_attn_func"]
__version__ = "0.1.0"


_tensors: Any = None  # the module _torch, once a tensor of PyTorch has been seen


def _run(q: Any, k: Any, v: Any, spec: Spec, tables: Optional[Mapping[str, Any]], return_lse: bool) -> Any:
    global _tensors
    if _tensors is not None and isinstance(q, _tensors.torch.Tensor):
        return _tensors.attention(q, k, v, spec, tables, return_lse)
    torch = sys.modules.get("torch")  # never imported here: who passes its tensors has
    if torch is not None and isinstance(q, torch.Tensor):
        from . import _torch
        _tensors = _torch
        return _torch.attention(q, k, v, spec, tables, return_lse)
    from . import _arrays
    return _arrays.attention(q, k, v, spec, tables, return_lse)


def flash_attn_func(q: Any, k: Any, v: Any, softmax_scale: Optional[float] = None, causal: bool = False,
                    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, deterministic: bool = False,
                    return_lse: bool = False, *, alibi_slopes: Any = None) -> Any:
    """softmax(q k^T * softmax_scale) v, with the arguments and meaning of FlashAttention 3.

    q: (batch, seqlen_q, heads, dim). k: (batch, seqlen_k, heads_kv, dim). v: (batch, seqlen_k, heads_kv, dim_v).
    bfloat16, float16 or float32, last axis contiguous. heads is a multiple of heads_kv: query head h reads kv head
    h // (heads // heads_kv).

    softmax_scale: 1 / sqrt(dim) unless given; not 0. (FlashAttention 2 has dropout_p in its place: there is none here.)
    causal: query i sees keys j <= i + seqlen_k - seqlen_q; the last query sees every key.
    window_size: (left, right), both inclusive around that diagonal; -1 is no bound.
    softcap: scores become softcap * tanh(score / softcap); 0 leaves them alone.
    deterministic: gradients have the same bits in every run, and take longer.
    alibi_slopes: (heads,) or (batch, heads), float32: slope * |i + seqlen_k - seqlen_q - j| is taken from scores.
    return_lse: also return the natural logarithm of each row's sum of exponentials, (batch, heads, seqlen_q), float32;
    a constant to autograd, as FlashAttention's is.

    Returns o, (batch, seqlen_q, heads, dim_v), or (o, lse). A query that sees no key has o = 0 and lse = -inf.
    """
    if alibi_slopes is None:
        return _run(q, k, v, Spec(softmax_scale, causal, window_size[0], window_size[1], softcap, "", "", "bshd",
                                  deterministic), None, return_lse)
    slope = "slope[h]" if alibi_slopes.ndim == 1 else "slope[b, h]"
    return _run(q, k, v, Spec(softmax_scale, causal, window_size[0], window_size[1], softcap, "",
                              f"s - {slope} * abs(q + sk - sq - k)", "bshd", deterministic),
                {"slope": alibi_slopes}, return_lse)


def attention(q: Any, k: Any, v: Any, mask: str = "", score: str = "", tables: Optional[Mapping[str, Any]] = None, *,
              causal: bool = False, window: tuple[int, int] = (-1, -1), softcap: float = 0.0,
              scale: Optional[float] = None, layout: str = "bshd", deterministic: bool = False, schedule: str = "",
              return_lse: bool = False) -> Any:
    """softmax(mask(score(scale * q k^T))) v for any mask and score.

    mask: a condition, may query q see key k? ``"k <= q and q - k < 256"``.
    score: a number instead of the scaled product s: ``"s - 0.1 * abs(q - k)"``.
    Both may use q, k, the lengths sq and sk, the head h, the batch entry b, + - * / // %, comparisons, and or not,
    where(c, x, y), min, max, abs, exp, log, tanh, and tables: ``doc[q]``, ``bias[h]``, ``length[b]``, ``doc[b, k]``.
    tables: the tables by name: int32 or float32, of one axis or (batch, axis), where q is. They get no gradients.
    layout: the order of axes, "bshd" (batch, sequence, heads, dim) or "bhsd".
    schedule: tile sizes and the like, "tile_q=128,tile_kv=64"; empty: good defaults.

    Everything else is as in :func:`flash_attn_func`; causal, window and mask hold together.
    """
    spec = Spec(scale, causal, window[0], window[1], softcap, mask, score, layout, deterministic, schedule)
    return _run(q, k, v, spec, tables, return_lse)
