"""The Python package without PyTorch: NumPy arrays, DLPack capsules of either kind, errors, threads, forks."""
import ctypes
import logging
import os
import threading
import unittest

import numpy as np
import tilewright
from tilewright._arrays import _extents
from tilewright._dlpack import View
from tilewright._library import Tensor

try:
    import jax
except ImportError:
    jax = None


def standard(q, k, v, visible=None, scale=None):
    """(o, lse) in double precision, tensors (batch, sequence, heads, dim)."""
    q, k, v = (np.moveaxis(x.astype(np.float64), 2, 1) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    s = q @ np.swapaxes(k, 2, 3) * (scale or q.shape[-1] ** -0.5)
    if visible is not None:
        s = np.where(visible, s, -np.inf)
    with np.errstate(invalid="ignore", divide="ignore"):
        top = s.max(-1, keepdims=True)
        p = np.exp(s - np.where(np.isfinite(top), top, 0))
        total = p.sum(-1, keepdims=True)
        o = np.where(total > 0, p / total, 0) @ v
        lse = np.log(total[..., 0]) + top[..., 0]
    return np.moveaxis(o, 1, 2), lse


def tensors(batch=2, rows=70, keys=90, heads=4, heads_kv=2, dim=32, dim_v=48, dtype=np.float32):
    random = np.random.default_rng(1)
    shapes = (batch, rows, heads, dim), (batch, keys, heads_kv, dim), (batch, keys, heads_kv, dim_v)
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


class Capsule:
    """An array that exports the capsules of a DLPack version, as other libraries do."""

    class _Versioned(ctypes.Structure):
        _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager", ctypes.c_void_p),
                    ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", Tensor)]

    def __init__(self, array, major=1, name=b"dltensor_versioned"):
        self.array, self.major, self.name = array, major, name

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, *, max_version=None, stream=None):
        assert max_version is not None
        plain = View("array", self.array)
        self.managed = self._Versioned(self.major, 0, None, None, 0, plain.tensor)
        self.alive = plain
        new = ctypes.pythonapi.PyCapsule_New
        new.argtypes, new.restype = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p], ctypes.py_object
        return new(ctypes.addressof(self.managed), self.name, None)


class Forward(unittest.TestCase):
    def check(self, got, expected, tolerance=2e-6):
        np.testing.assert_allclose(got, expected, atol=tolerance * 10, rtol=tolerance * 10)

    def test_plain_causal_and_window(self):
        q, k, v = tensors()
        i, j = np.arange(70)[:, None], np.arange(90)[None, :]
        for arguments, visible in (({}, None), ({"causal": True}, j <= i + 20),
                                   ({"window_size": (5, 3)}, (j >= i + 15) & (j <= i + 23)),
                                   ({"causal": True, "window_size": (7, -1)}, (j >= i + 13) & (j <= i + 20))):
            o, lse = tilewright.flash_attn_func(q, k, v, return_lse=True, **arguments)
            expected, expected_lse = standard(q, k, v, visible)
            self.check(o, expected)
            self.check(lse, expected_lse)

    def test_scale_and_a_row_that_sees_nothing(self):
        q, k, v = tensors(rows=90, keys=70)
        o, lse = tilewright.flash_attn_func(q, k, v, softmax_scale=0.5, causal=True, return_lse=True)
        self.assertTrue((o[:, :20] == 0).all() and np.isneginf(lse[:, :, :20]).all())
        i, j = np.arange(90)[:, None], np.arange(70)[None, :]
        self.check(o, standard(q, k, v, j <= i - 20, 0.5)[0])

    def test_strided_half_and_read_only(self):
        q, k, v = tensors(dtype=np.float16)
        expected, _ = standard(q, k, v)
        q = np.ascontiguousarray(q.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
        wide = np.empty(v.shape[:-1] + (v.shape[-1] + 3,), np.float16)
        wide[..., 1:-2] = v
        k.flags.writeable = False
        o = tilewright.flash_attn_func(q, k, wide[..., 1:-2])
        self.assertEqual(o.dtype, np.float16)
        self.check(o, expected, 2e-4)

    def test_mask_score_and_tables(self):
        q, k, v = tensors(rows=90)
        doc = (np.arange(90) // 37).astype(np.int32)
        o = tilewright.attention(q, k, v, mask="doc[q] == doc[k] and k <= q", tables={"doc": doc})
        i, j = np.arange(90)[:, None], np.arange(90)[None, :]
        self.check(o, standard(q, k, v, (doc[:, None] == doc[None, :]) & (j <= i))[0])
        biased = tilewright.attention(q, k, v, score="s + bias[h]", tables={"bias": np.ones(4, np.float32)})
        self.check(biased, standard(q, k, v)[0])
        flipped = tilewright.attention(*(np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (q, k, v)),
                                       layout="bhsd", schedule="tile_q=32")
        self.check(flipped.transpose(0, 2, 1, 3), standard(q, k, v)[0])

    def test_extents_of_tables(self):
        for extent in (1, 15, 16, 40):
            table = np.random.default_rng(3).integers(-99, 99, (2, extent)).astype(np.int32)
            minima, maxima = _extents(table, np)
            parts = [table[:, at:at + 16] for at in range(0, extent, 16)]
            np.testing.assert_array_equal(minima, np.stack([part.min(1) for part in parts], 1))
            np.testing.assert_array_equal(maxima, np.stack([part.max(1) for part in parts], 1))

    def test_alibi(self):
        q, k, v = tensors()
        slopes = np.array([[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8]], np.float32)
        o = tilewright.flash_attn_func(q, k, v, alibi_slopes=slopes)
        expected = tilewright.attention(q[1:], k[1:], v[1:], score="s - (h + 5) * 0.1 * abs(q + 20 - k)")
        self.check(o[1:], expected)

    def test_split_keys_take_a_workspace(self):
        q, k, v = tensors(rows=1, keys=600)
        o = tilewright.attention(q, k, v, schedule="forward.split_kv=4")
        self.check(o, standard(q, k, v)[0])

    def test_empty(self):
        q, k, v = tensors(batch=0)
        self.assertEqual(tilewright.flash_attn_func(q, k, v).shape, (0, 70, 4, 48))


class Capsules(unittest.TestCase):
    def test_versioned(self):
        q, k, v = tensors()
        exporter = Capsule(q)
        view = View("q", exporter)
        self.assertEqual((view.shape, view.dtype), (q.shape, (2, 32, 1)))
        self.assertEqual(view.tensor.data + view.tensor.byte_offset, q.ctypes.data)

    def test_refused(self):
        q, _, _ = tensors()
        with self.assertRaisesRegex(ValueError, "expected DLPack 1, found version 2"):
            View("q", Capsule(q, major=2))
        with self.assertRaisesRegex(ValueError, "that nobody has used"):
            View("q", Capsule(q, name=b"used_dltensor_versioned"))
        with self.assertRaisesRegex(TypeError, "q: expected a tensor"):
            View("q", [1, 2])


@unittest.skipIf(jax is None, "JAX missing")
class Jax(unittest.TestCase):
    def test_arrays_in_arrays_out(self):
        q, k, v = tensors()
        i, j = np.arange(70)[:, None], np.arange(90)[None, :]
        o, lse = tilewright.flash_attn_func(*(jax.numpy.asarray(x) for x in (q, k, v)), causal=True, return_lse=True)
        self.assertIsInstance(o, jax.Array)
        expected, expected_lse = standard(q, k, v, j <= i + 20)
        np.testing.assert_allclose(np.asarray(o), expected, atol=2e-5)
        np.testing.assert_allclose(np.asarray(lse), expected_lse, atol=2e-5)
        half = [jax.numpy.asarray(x, jax.numpy.bfloat16) for x in (q, k, v)]
        self.assertEqual(tilewright.flash_attn_func(*half).dtype, jax.numpy.bfloat16)


class Errors(unittest.TestCase):
    def test_say_what_and_what_to_do(self):
        q, k, v = tensors()
        with self.assertRaises(tilewright.TilewrightError) as caught:
            tilewright.attention(q, k, v, mask="k <= w")
        self.assertEqual(caught.exception.stage, "input")
        self.assertIn("w", str(caught.exception))
        with self.assertRaisesRegex(tilewright.TilewrightError, "v: expected shape"):
            tilewright.flash_attn_func(q, k, v[:, :50])
        with self.assertRaisesRegex(tilewright.TilewrightError, "contiguous last axis, found stride 2"):
            tilewright.flash_attn_func(q, k, np.repeat(v, 2, -1)[..., ::2])
        with self.assertRaisesRegex(TypeError, "the same for q, k and v"):
            tilewright.flash_attn_func(q, k.astype(np.float16), v)
        with self.assertRaisesRegex(TypeError, "expected bfloat16, float16 or float32"):
            tilewright.flash_attn_func(*(x.astype(np.float64) for x in (q, k, v)))
        with self.assertRaisesRegex(ValueError, "q: expected 4 axes"):
            tilewright.flash_attn_func(q[0], k, v)
        with self.assertRaisesRegex(tilewright.TilewrightError, "no expression reads a table 'doc'"):
            tilewright.attention(q, k, v, tables={"doc": np.zeros(90, np.int32)})
        with self.assertRaisesRegex(tilewright.TilewrightError, "table 'doc'.*not among"):
            tilewright.attention(q, k, v, mask="doc[k] == 0")

    def test_messages_go_to_the_logger(self):
        q, k, v = tensors(dim=24)
        with self.assertLogs("tilewright", logging.INFO) as logs:
            tilewright.attention(q, k, v, mask=f"k != {os.getpid() % 89}", score=f"s + {os.getpid()}")
        self.assertTrue(any("compiling" in line for line in logs.output), logs.output)


class Processes(unittest.TestCase):
    def test_threads(self):
        q, k, v = tensors()
        expected = tilewright.flash_attn_func(q, k, v)
        right = []

        def work():
            for _ in range(20):
                right.append(np.array_equal(tilewright.flash_attn_func(q, k, v), expected))
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(right, [True] * 160)

    def test_fork_after_use(self):
        q, k, v = tensors(rows=300, keys=300)
        expected = tilewright.flash_attn_func(q, k, v)
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if np.array_equal(tilewright.flash_attn_func(q, k, v), expected) else 1)
            finally:
                os._exit(2)
        self.assertEqual(os.waitpid(child, 0)[1], 0)


if __name__ == "__main__":
    unittest.main()
