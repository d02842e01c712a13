"""Attention of arrays that are not PyTorch's: NumPy's, CuPy's, JAX's, any that speak DLPack. Forward only."""
from __future__ import annotations

import ctypes
import sys
from typing import Any, Mapping, Optional

from . import _library
from ._dlpack import View
from ._library import CPU, CUDA, Args, Sizes, Spec, Table

_TYPES = {(4, 16, 1): "bf16", (2, 16, 1): "fp16", (2, 32, 1): "fp32"}


def _type_text(dtype: tuple) -> str:
    code, bits, lanes = dtype
    kind = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}.get(code)
    return f"{kind}{bits}" if kind and lanes == 1 else f"DLPack type {dtype}"


def _library_of(array: Any) -> str:
    return type(array).__module__.partition(".")[0]


def _readable(array: Any) -> Any:
    """An array that exports its memory, all of it computed."""
    if _library_of(array) in ("jax", "jaxlib"):
        return array.block_until_ready()
    # NumPy before 2.1 exports no array that is read-only; reading is all that is done here.
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(array, numpy.ndarray) or array.flags.writeable:
        return array
    interface = dict(array.__array_interface__)
    interface["data"] = (interface["data"][0], False)

    class _Writeable:
        __array_interface__ = interface
        owner = array
    return numpy.asarray(_Writeable())


def _empty(like: Any, shape: tuple, dtype: Any) -> Any:
    """Fresh memory of the same library, on the same device."""
    of = _library_of(like)
    if of == "cupy":
        import cupy
        with cupy.cuda.Device(like.device.id):
            return cupy.empty(shape, dtype)
    if of in ("jax", "jaxlib"):
        import jax
        import jax.numpy
        # Nobody else has seen this array: until it is returned it may be written.
        with jax.default_device(next(iter(like.devices()))):
            return jax.block_until_ready(jax.numpy.empty(shape, dtype))
    import numpy
    if int(like.__dlpack_device__()[0]) != CPU:
        raise TypeError(f"q: {type(like).__name__} on a GPU: expected a tensor of PyTorch or CuPy there")
    return numpy.empty(shape, dtype)


def _stream(like: Any, device_type: int) -> int:
    """The stream that the array's library has made current."""
    if device_type == CPU:
        return 0
    if _library_of(like) == "cupy":
        import cupy
        return cupy.cuda.get_current_stream(like.device.id).ptr
    raise TypeError(f"q: {type(like).__name__} on a GPU: its library has no current stream to launch on; hand the "
                    "array to PyTorch or CuPy by DLPack, which copies nothing")


def _scratch(like: Any, bytes_: int) -> tuple[Any, int]:
    """Scratch memory and its first address that is a multiple of 64."""
    if bytes_ == 0:
        return None, 0
    if _library_of(like) == "cupy":
        import cupy
        memory = cupy.empty(bytes_ + 64, "uint8")
        address = memory.data.ptr
    else:
        memory = ctypes.create_string_buffer(bytes_ + 64)
        address = ctypes.addressof(memory)
    return memory, (address + 63) // 64 * 64


def _extents(table: Any, library: Any) -> tuple[Any, Any]:
    """Smallest and largest of every 16 elements of the last axis, by CuPy (or NumPy, which has the same functions)."""
    whole = table.shape[-1] // 16 * 16
    body, tail = table[..., :whole].reshape(*table.shape[:-1], whole // 16, 16), table[..., whole:]
    found = body.min(-1), body.max(-1)
    if tail.shape[-1] == 0:
        return found
    return tuple(library.concatenate((of_body, of_tail), -1) for of_body, of_tail in
                 zip(found, (tail.min(-1, keepdims=True), tail.max(-1, keepdims=True))))


def attention(q: Any, k: Any, v: Any, spec: Spec, tables: Optional[Mapping[str, Any]], return_lse: bool) -> Any:
    views = {name: View(name, _readable(array)) for name, array in (("q", q), ("k", k), ("v", v))}
    for name, view in views.items():
        if len(view.shape) != 4:
            raise ValueError(f"{name}: expected 4 axes ({', '.join(spec.layout)}), found shape {view.shape}")
        if view.dtype not in _TYPES or view.dtype != views["q"].dtype:
            raise TypeError(f"{name}: expected bfloat16, float16 or float32, the same for q, k and v, found "
                            f"{_type_text(view.dtype)} where q is {_type_text(views['q'].dtype)}")
    table_views = {name: View(f"table {name}", _readable(table)) for name, table in (tables or {}).items()}
    place = views["q"].tensor
    sizes = Sizes(views["q"].shape, views["k"].shape, views["v"].shape, _TYPES[views["q"].dtype], place.device_type,
                  place.device_id, tuple((name, view.dtype == (2, 32, 1)) for name, view in table_views.items()))
    stream = _stream(q, place.device_type)
    prepared = _library.prepare(spec, sizes, False, stream)

    rows, heads = (1, 2) if spec.layout == "bshd" else (2, 1)
    shape = sizes.q
    o = _empty(q, shape[:3] + (sizes.v[3],), q.dtype)
    lse = _empty(q, (shape[0], shape[heads], shape[rows]), "float32")
    o_view, lse_view = View("o", o), View("lse", lse)
    given = (Table * len(table_views))(*[Table(name.encode(), view.tensor) for name, view in table_views.items()])
    alive = []
    if place.device_type == CUDA:
        import cupy
        for table, view, array in zip(given, table_views.values(), (tables or {}).values()):
            if view.dtype == (0, 32, 1):
                minima, maxima = _extents(array, cupy)
                alive += [minima, maxima]
                table.minima, table.maxima = minima.data.ptr, maxima.data.ptr
    args = Args(struct_size=ctypes.sizeof(Args), q=views["q"].tensor, k=views["k"].tensor, v=views["v"].tensor,
                o=o_view.tensor, lse=lse_view.tensor.data + lse_view.tensor.byte_offset if lse.size else None,
                tables=given, table_count=len(given))
    memory, args.workspace = _scratch(q, prepared.workspace(args)[0])
    args.workspace_bytes = prepared.workspace(args)[0]
    if _library.forward(prepared.handle, ctypes.addressof(args), stream):
        raise _library.failure()
    del memory, alive
    return (o, lse) if return_lse else o
