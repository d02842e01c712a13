"""libtilewright by ctypes: its structs, errors, one context for the process, and the attentions that are prepared."""
from __future__ import annotations

import ctypes
import ctypes.util
import logging
import os
import threading
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

CPU, CUDA = 1, 2  # DLPack's device types
INTERFACE = 1  # tw_version() // 100, which is major * 100 + minor


class DType(ctypes.Structure):
    """DLDataType."""
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):
    """DLTensor, which is also tw_tensor."""
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32),
                ("dtype", DType), ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class _Error(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("code", c_int32), ("stage", c_char_p), ("message", c_char_p),
                ("hint", c_char_p), ("log", c_char_p)]


_LogCallback = ctypes.CFUNCTYPE(None, c_void_p, c_int32, c_char_p)


class _ContextOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("log", _LogCallback), ("log_user", c_void_p),
                ("cache_directory", c_char_p)]


class _TableType(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("is_float", c_int32)]


class _Problem(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("batch", c_int64), ("heads_q", c_int64), ("heads_kv", c_int64),
                ("seq_q", c_int64), ("seq_kv", c_int64), ("dim_qk", c_int64), ("dim_v", c_int64),
                ("dtype", c_char_p), ("layout", c_char_p), ("gradients", c_int32), ("causal", c_int32),
                ("window_left", c_int64), ("window_right", c_int64), ("softcap", c_double), ("scale", c_double),
                ("mask", c_char_p), ("score", c_char_p), ("tables", POINTER(_TableType)), ("table_count", c_int32)]


class _PrepareOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("device_type", c_int32), ("device_id", c_int32), ("target", c_char_p),
                ("schedule", c_char_p), ("stream", c_void_p)]


class Table(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("values", Tensor), ("minima", c_void_p), ("maxima", c_void_p)]


class Args(ctypes.Structure):
    """tw_attention_args."""
    _fields_ = [("struct_size", c_size_t), ("q", Tensor), ("k", Tensor), ("v", Tensor), ("o", Tensor),
                ("lse", c_void_p), ("lse_rest", c_void_p), ("d_o", Tensor), ("d_q", Tensor), ("d_k", Tensor),
                ("d_v", Tensor), ("tables", POINTER(Table)), ("table_count", c_int32), ("scale", c_float),
                ("workspace", c_void_p), ("workspace_bytes", c_int64)]


class _Workspace(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("forward_bytes", c_int64), ("backward_bytes", c_int64)]


class TilewrightError(RuntimeError):
    """What libtilewright refused or failed to do. ``stage`` says where ("input", "compile", ...), ``hint`` what to do
    about it, ``log`` is the whole output of the tool that failed, if one did."""

    def __init__(self, stage: str, message: str, hint: str, log: str) -> None:
        super().__init__(f"{stage}: {message}" + (f"\n  hint: {hint}" if hint else ""))
        self.stage, self.hint, self.log = stage, hint, log


def _candidates() -> list[str]:
    """Where the library may be: where TILEWRIGHT_LIBRARY says, beside this package, in the source tree's build, where
    the system's linker looks."""
    if stated := os.environ.get("TILEWRIGHT_LIBRARY"):
        return [stated]
    here = Path(__file__).resolve().parent
    name = "libtilewright.so.0.1"
    near = [here / name, here.parents[2] / "build" / "lib" / name]
    return [str(path) for path in near if path.exists()] + [name, "libtilewright-runtime.so.0.1"]


def _load() -> ctypes.CDLL:
    reasons = []
    for path in _candidates():
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            reasons.append(str(error))
    raise ImportError("libtilewright was not found; install it or let TILEWRIGHT_LIBRARY name it: " +
                      "; ".join(reasons))


library = _load()
if library.tw_version() // 100 != INTERFACE:
    raise ImportError(f"this package is for libtilewright 0.1, the library found is version {library.tw_version()}")
library.tw_last_error.restype = POINTER(_Error)
library.tw_attention_destroy.argtypes = [c_void_p]
library.tw_attention_describe.restype = c_char_p
library.tw_attention_describe.argtypes = [c_void_p]
library.tw_context_create.argtypes = [POINTER(_ContextOptions), POINTER(c_void_p)]
library.tw_problem_init.argtypes = [POINTER(_Problem), c_size_t]
library.tw_attention_prepare.argtypes = [c_void_p, POINTER(_Problem), POINTER(_PrepareOptions), POINTER(c_void_p)]
library.tw_attention_workspace.argtypes = [c_void_p, POINTER(Args), POINTER(_Workspace)]
# Called with addresses as integers and objects of byref(): no conversion lies on the way.
forward, backward = library.tw_attention_forward, library.tw_attention_backward
for function in (forward, backward):
    function.argtypes = [c_void_p, c_void_p, c_void_p]
    function.restype = c_int


def failure() -> TilewrightError:
    """The error of this thread's last call, which failed."""
    error = library.tw_last_error().contents
    texts = [text.decode(errors="replace") for text in (error.stage, error.message, error.hint, error.log)]
    return TilewrightError(*texts)


class Spec(NamedTuple):
    """What an attention computes, apart from its tensors' sizes and types."""
    scale: Optional[float] = None
    causal: bool = False
    window_left: int = -1
    window_right: int = -1
    softcap: float = 0.0
    mask: str = ""
    score: str = ""
    layout: str = "bshd"
    deterministic: bool = False
    schedule: str = ""

    def check(self) -> None:
        """Refuses what would reach the library as something else: numbers that wrap, texts that end early, and what
        FlashAttention 2's order of arguments makes of a dropout that comes before the scale."""
        for name in ("causal", "deterministic"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name}: expected True or False, found {getattr(self, name)!r}")
        for name in ("window_left", "window_right"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value < 1 << 31:
                raise ValueError(f"{name}: expected -1 (no bound) to {(1 << 31) - 1}, found {value!r}")
        for name in ("mask", "score", "layout", "schedule"):
            value = getattr(self, name)
            if not isinstance(value, str) or "\0" in value:
                raise TypeError(f"{name}: expected a text without NUL, found {value!r}")
        if self.scale is not None and (isinstance(self.scale, bool) or not self.scale):
            raise ValueError(f"softmax_scale: expected a number other than 0, or None for 1 / sqrt(dim), found "
                             f"{self.scale!r}; there is no dropout, the fourth argument is the scale")


class Sizes(NamedTuple):
    """A problem's sizes, types and place."""
    q: tuple
    k: tuple
    v: tuple
    dtype: str
    device_type: int
    device_id: int
    tables: tuple = ()  # of (name, is float)


class Attention:
    """A prepared problem."""
    __slots__ = ("handle",)

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __del__(self, destroy: Any = library.tw_attention_destroy) -> None:
        destroy(self.handle)

    def workspace(self, args: Args) -> tuple[int, int]:
        """Bytes of scratch memory that (forward, backward) need."""
        found = _Workspace(struct_size=ctypes.sizeof(_Workspace))
        if library.tw_attention_workspace(self.handle, byref(args), byref(found)):
            raise failure()
        return found.forward_bytes, found.backward_bytes

    def describe(self) -> str:
        """Problem, target and kernels as JSON."""
        return library.tw_attention_describe(self.handle).decode()


_log = logging.getLogger("tilewright")
_levels = {0: logging.DEBUG, 1: logging.INFO, 2: logging.WARNING}


@_LogCallback
def _write_log(_user: Any, level: int, message: bytes) -> None:
    _log.log(_levels.get(level, logging.WARNING), "%s", message.decode(errors="replace"))


_lock = threading.Lock()
_context: Optional[int] = None
_prepared: dict[tuple, Attention] = {}
MOST_PREPARED = 4096  # handles of a few kilobytes; kernels are shared between them


_of_parents: list = []  # kept: a child could not take down what belongs to its parent's threads and devices
on_fork: list[Callable[[], None]] = []


def _forget() -> None:
    """A forked child has none of its parent's threads: it starts anew."""
    global _context, _lock, _prepared
    _of_parents.append(_prepared)
    _context, _lock, _prepared = None, threading.Lock(), {}
    for forget in on_fork:
        forget()


os.register_at_fork(after_in_child=_forget)


def _context_handle() -> int:
    global _context
    if _context is None:
        made = c_void_p()
        options = _ContextOptions(struct_size=ctypes.sizeof(_ContextOptions), log=_write_log)
        if library.tw_context_create(byref(options), byref(made)):
            raise failure()
        _context = made.value
    return _context


def prepare(spec: Spec, sizes: Sizes, gradients: bool, stream: int) -> Attention:
    """The attention for a spec and sizes, prepared once for the process."""
    key = (spec, sizes, gradients)
    found = _prepared.get(key)
    if found is not None:
        return found
    spec.check()
    with _lock:
        context = _context_handle()
    problem = _Problem()
    library.tw_problem_init(byref(problem), ctypes.sizeof(problem))
    rows, heads = (1, 2) if spec.layout == "bshd" else (2, 1)
    problem.batch, problem.seq_q, problem.heads_q = sizes.q[0], sizes.q[rows], sizes.q[heads]
    problem.seq_kv, problem.heads_kv = sizes.k[rows], sizes.k[heads]
    problem.dim_qk, problem.dim_v = sizes.q[3], sizes.v[3]
    problem.dtype, problem.layout = sizes.dtype.encode(), spec.layout.encode()
    problem.gradients, problem.causal = gradients, spec.causal
    problem.window_left, problem.window_right = spec.window_left, spec.window_right
    problem.softcap = spec.softcap
    if spec.scale is not None:
        problem.scale = spec.scale
    problem.mask, problem.score = spec.mask.encode(), spec.score.encode()
    types = (_TableType * len(sizes.tables))(*[(name.encode(), is_float) for name, is_float in sizes.tables])
    problem.tables, problem.table_count = types, len(types)
    schedule = spec.schedule
    if spec.deterministic and gradients:
        schedule += ("," if schedule else "") + "backward=two_kernel"
    options = _PrepareOptions(struct_size=ctypes.sizeof(_PrepareOptions), device_type=sizes.device_type,
                              device_id=sizes.device_id, schedule=schedule.encode(), stream=stream)
    made = c_void_p()
    if library.tw_attention_prepare(context, byref(problem), byref(options), byref(made)):
        raise failure()
    if len(_prepared) >= MOST_PREPARED:
        _prepared.clear()
    return _prepared.setdefault(key, Attention(made.value))
