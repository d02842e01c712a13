"""Views of other libraries' arrays by DLPack: capsules of version 1 and the older ones without a version."""
from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_uint32, c_uint64, c_void_p, py_object
from typing import Any

from ._library import CPU, CUDA, Tensor


class _Managed(ctypes.Structure):
    """DLManagedTensor."""
    _fields_ = [("tensor", Tensor), ("manager", c_void_p), ("deleter", c_void_p)]


class _ManagedVersioned(ctypes.Structure):
    """DLManagedTensorVersioned."""
    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("manager", c_void_p), ("deleter", c_void_p),
                ("flags", c_uint64), ("tensor", Tensor)]


_name_of = ctypes.pythonapi.PyCapsule_GetName
_name_of.argtypes, _name_of.restype = [py_object], c_char_p
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.argtypes, _pointer_of.restype = [py_object, c_char_p], c_void_p


def _capsule(array: Any, device_type: int) -> Any:
    # -1: no synchronisation. Kernels go to the stream that the array's library has made current.
    stream = {"stream": -1} if device_type == CUDA else {}
    try:
        return array.__dlpack__(max_version=(1, 1), **stream)
    except TypeError:
        return array.__dlpack__(**stream)  # older than DLPack 1


class View:
    """An array's memory. `tensor` holds while the view lives: the capsule, never consumed, keeps the array alive."""
    __slots__ = ("tensor", "_capsule")

    def __init__(self, name: str, array: Any) -> None:
        if not hasattr(array, "__dlpack__") or not hasattr(array, "__dlpack_device__"):
            raise TypeError(f"{name}: expected a tensor of PyTorch, NumPy, CuPy, JAX or another library that speaks "
                            f"DLPack, found {type(array).__name__}")
        device_type = int(array.__dlpack_device__()[0])
        if device_type not in (CPU, CUDA):
            raise ValueError(f"{name}: expected memory of the CPU or a CUDA device, found DLPack device {device_type}")
        self._capsule = _capsule(array, device_type)
        kind = _name_of(self._capsule)
        address = _pointer_of(self._capsule, kind)
        if kind == b"dltensor_versioned":
            managed = ctypes.cast(address, POINTER(_ManagedVersioned)).contents
            if managed.major != 1:
                raise ValueError(f"{name}: expected DLPack 1, found version {managed.major}.{managed.minor}")
        elif kind == b"dltensor":
            managed = ctypes.cast(address, POINTER(_Managed)).contents
        else:
            raise ValueError(f"{name}: expected a DLPack capsule that nobody has used, found {kind!r}")
        self.tensor = managed.tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape[axis] for axis in range(self.tensor.ndim))

    @property
    def dtype(self) -> tuple[int, int, int]:
        dtype = self.tensor.dtype
        return dtype.code, dtype.bits, dtype.lanes
