"""Attention of PyTorch tensors, with gradients, on the current stream.

A call costs little on the host: all that does not change from call to call (kernels, shapes, strides) is found by one
look into a dictionary of this thread, and only addresses are filled in.
"""
from __future__ import annotations

import ctypes
import threading
from typing import Any, Optional

import torch

from . import _library
from ._library import CPU, CUDA, Args, Sizes, Spec, Table, Tensor

_TYPES = {torch.bfloat16: ("bf16", (4, 16, 1)), torch.float16: ("fp16", (2, 16, 1)),
          torch.float32: ("fp32", (2, 32, 1)), torch.int32: ("int32", (0, 32, 1))}
_MOST_CALLS = 1024  # kept by a thread: beyond, shapes change so often that the oldest help nobody
_UNREAD_BYTES = 1 << 16
_unread: dict[torch.device, torch.Tensor] = {}  # kept for good: kernels on any stream may still write there


def _unread_rows(device: torch.device) -> int:
    """Address of memory that kernels write an LSE to which nobody asked for."""
    memory = _unread.get(device)
    if memory is None:
        memory = _unread.setdefault(device, torch.empty(_UNREAD_BYTES, dtype=torch.uint8, device=device))
    return memory.data_ptr()


def _current_stream(index: int) -> int:
    return torch.cuda.current_stream(index).cuda_stream


# What compiled code of PyTorch itself uses: no Python object is made for the stream.
_current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _current_stream)


def _fill(to: Tensor, shape: tuple, strides: tuple, dtype: torch.dtype, place: tuple[int, int]) -> None:
    to.ndim = len(shape)
    to.shape = (ctypes.c_int64 * len(shape))(*shape)
    to.strides = (ctypes.c_int64 * len(shape))(*strides)
    to.dtype = _TYPES[dtype][1]
    to.device_type, to.device_id = place


def _contiguous(shape: tuple) -> tuple:
    strides = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * shape[axis]
    return tuple(strides)


class _Call:
    """One kind of call: a prepared attention and the arguments that do not change. Belongs to one thread."""
    __slots__ = ("key", "attention", "args", "address", "cuda", "device", "o_shape", "o_is_like_q", "lse_shape",
                 "unread_lse", "forward_bytes", "backward_bytes", "q", "k", "v", "o", "d_o", "d_q", "d_k", "d_v", "d_o_strides",
                 "tables")

    def __init__(self, key: tuple, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spec: Spec,
                 gradients: bool, tables: Optional[dict]) -> None:
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            if tensor.dim() != 4:
                raise ValueError(f"{name}: expected 4 axes ({', '.join(spec.layout)}), found shape "
                                 f"{tuple(tensor.shape)}")
            if tensor.dtype != q.dtype or tensor.dtype not in _TYPES or tensor.dtype == torch.int32:
                raise TypeError(f"{name}: expected bfloat16, float16 or float32, the same for q, k and v, found "
                                f"{tensor.dtype} where q is {q.dtype}")
            if tensor.device != q.device:
                raise ValueError(f"{name}: expected a tensor on {q.device}, as q is, found {tensor.device}")
        for name, table in (tables or {}).items():
            if table.dtype not in (torch.int32, torch.float32):
                raise TypeError(f"table {name}: expected int32 or float32, found {table.dtype}")
            if table.device != q.device:
                raise ValueError(f"table {name}: expected a tensor on {q.device}, as q is, found {table.device}")
        if q.device.type not in ("cpu", "cuda"):
            raise ValueError(f"q: expected a tensor on the CPU or a CUDA device, found {q.device}")
        self.cuda = q.device.type == "cuda"
        self.device = q.device.index or 0
        place = (CUDA if self.cuda else CPU, self.device)
        types = tuple((name, table.dtype == torch.float32) for name, table in (tables or {}).items())
        shape = tuple(q.shape)
        sizes = Sizes(shape, tuple(k.shape), tuple(v.shape), _TYPES[q.dtype][0], *place, types)
        self.key = key
        self.attention = _library.prepare(spec, sizes, gradients, self.stream())
        self.o_shape = shape[:3] + (v.shape[3],)
        self.o_is_like_q = q.shape[3] == v.shape[3] and q.is_contiguous()
        rows, heads = (1, 2) if spec.layout == "bshd" else (2, 1)
        self.lse_shape = (shape[0], shape[heads], shape[rows])
        few_rows = 4 * shape[0] * shape[heads] * shape[rows] <= _UNREAD_BYTES
        self.unread_lse = _unread_rows(q.device) if few_rows else None

        self.args = args = Args(struct_size=ctypes.sizeof(Args))
        self.address = ctypes.addressof(args)
        self.q, self.k, self.v, self.o = args.q, args.k, args.v, args.o
        self.d_o, self.d_q, self.d_k, self.d_v = args.d_o, args.d_q, args.d_k, args.d_v
        for to, tensor in ((self.q, q), (self.k, k), (self.v, v)):
            _fill(to, tensor.shape, tensor.stride(), q.dtype, place)
        for to, of in ((self.o, self.o_shape), (self.d_q, shape), (self.d_k, k.shape), (self.d_v, v.shape)):
            _fill(to, of, _contiguous(of), q.dtype, place)
        self.d_o_strides = None
        self.tables = None
        if tables:
            self.tables = (Table * len(tables))()
            for to, (name, table) in zip(self.tables, tables.items()):
                to.name = name.encode()
                _fill(to.values, table.shape, table.stride(), table.dtype, place)
            args.tables, args.table_count = self.tables, len(self.tables)
        self.forward_bytes, self.backward_bytes = self.attention.workspace(args)

    def stream(self) -> int:
        return _current_stream(self.device) if self.cuda else 0

    def set_tables(self, tables: dict) -> list:
        """Addresses of the tables; what is returned must live until the launch."""
        alive = []
        for to, table in zip(self.tables, tables.values()):
            to.values.data = table.data_ptr()
            if self.cuda and table.dtype == torch.int32:
                minima, maxima = _extents(table)
                to.minima, to.maxima = minima.data_ptr(), maxima.data_ptr()
                alive += [minima, maxima]
        return alive

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tables: Optional[dict], return_lse: bool,
                rest: bool = False) -> tuple:
        """O, LSE (None where a small one is not asked for) and, with `rest`, what rounding LSE left out."""
        o = torch.empty_like(q) if self.o_is_like_q else q.new_empty(self.o_shape)
        args, lse = self.args, None
        self.q.data, self.k.data, self.v.data, self.o.data = q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr()
        if return_lse or self.unread_lse is None:
            lse = q.new_empty(self.lse_shape, dtype=torch.float32)
            args.lse = lse.data_ptr()
        else:
            args.lse = self.unread_lse
        remainder = None
        if rest:
            remainder = torch.empty_like(lse)
            args.lse_rest = remainder.data_ptr()
        if self.forward_bytes:
            workspace = torch.empty(self.forward_bytes, dtype=torch.uint8, device=q.device)
            args.workspace, args.workspace_bytes = workspace.data_ptr(), self.forward_bytes
        alive = self.set_tables(tables) if tables else None
        if _library.forward(self.attention.handle, self.address, self.stream()):
            raise _library.failure()
        del alive
        return o, lse, remainder

    def backward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor,
                 rest: torch.Tensor, d_o: torch.Tensor, tables: Optional[dict]) -> tuple:
        d_o = _readable(d_o)
        if d_o.stride() != self.d_o_strides:
            _fill(self.d_o, d_o.shape, d_o.stride(), d_o.dtype, (CUDA if self.cuda else CPU, self.device))
            self.d_o_strides = d_o.stride()
        d_q, d_k, d_v = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
        args = self.args
        self.q.data, self.k.data, self.v.data, self.o.data = q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr()
        self.d_o.data, self.d_q.data = d_o.data_ptr(), d_q.data_ptr()
        self.d_k.data, self.d_v.data = d_k.data_ptr(), d_v.data_ptr()
        args.lse, args.lse_rest = lse.data_ptr(), rest.data_ptr()
        workspace = torch.empty(self.backward_bytes, dtype=torch.uint8, device=q.device)
        args.workspace, args.workspace_bytes = workspace.data_ptr(), self.backward_bytes
        alive = self.set_tables(tables) if tables else None
        if _library.backward(self.attention.handle, self.address, self.stream()):
            raise _library.failure()
        del alive
        return d_q, d_k, d_v


def _readable(gradient: torch.Tensor) -> torch.Tensor:
    """The gradient itself where kernels can read it. What sum() sends back, say, is one number repeated by strides of
    0: that takes a copy."""
    strides = gradient.stride()
    step = 16 // gradient.element_size()
    if strides[3] == 1 and 0 not in strides and (
            not gradient.is_cuda or not (any(stride % step for stride in strides[:3]) or gradient.data_ptr() % 16)):
        return gradient
    return gradient.contiguous()


def _extents(table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Smallest and largest of every 16 elements of the last axis, computed where the table is."""
    whole = table.shape[-1] // 16 * 16
    body = table[..., :whole].reshape(*table.shape[:-1], whole // 16, 16)
    minima, maxima = body.amin(-1), body.amax(-1)
    if whole < table.shape[-1]:
        tail = table[..., whole:]
        minima = torch.cat((minima, tail.amin(-1, keepdim=True)), -1)
        maxima = torch.cat((maxima, tail.amax(-1, keepdim=True)), -1)
    return minima, maxima


class _Calls(threading.local):
    def __init__(self) -> None:
        self.known: dict[tuple, _Call] = {}


_calls = _Calls()


def _forget() -> None:
    global _calls
    _calls = _Calls()


_library.on_fork.append(_forget)


def _find(key: tuple, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spec: Spec, gradients: bool,
          tables: Optional[dict]) -> _Call:
    known = _calls.known
    if len(known) >= _MOST_CALLS:
        known.clear()
    call = known[key] = _Call(key, q, k, v, spec, gradients, tables)
    return call


class _WithGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: _Call, spec: Spec,
                tables: Optional[dict]) -> tuple:
        o, lse, rest = call.forward(q, k, v, tables, True, rest=True)
        ctx.save_for_backward(q, k, v, o, lse, rest)
        ctx.key, ctx.spec, ctx.tables = call.key, spec, tables
        ctx.mark_non_differentiable(lse)
        return o, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_o: torch.Tensor, _d_lse: Any) -> tuple:
        q, k, v, o, lse, rest = ctx.saved_tensors
        # Autograd calls from threads of its own.
        call = _calls.known.get(ctx.key) or _find(ctx.key, q, k, v, ctx.spec, True, ctx.tables)
        return call.backward(q, k, v, o, lse, rest, d_o, ctx.tables) + (None, None, None)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spec: Spec, tables: Optional[dict],
              return_lse: bool) -> Any:
    gradients = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    key = (spec, q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, k.dtype, v.dtype, q.device,
           k.device, v.device, gradients)
    if tables:
        tables = {name: table.detach() for name, table in tables.items()}
        key += tuple((name, t.shape, t.stride(), t.dtype, t.device) for name, t in tables.items())
    call = _calls.known.get(key) or _find(key, q, k, v, spec, gradients, tables)
    if gradients:
        o, lse = _WithGradients.apply(q, k, v, call, spec, tables)
    else:
        o, lse, _ = call.forward(q, k, v, tables, return_lse)
    return (o, lse) if return_lse else o
