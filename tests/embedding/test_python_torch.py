"""The Python package with PyTorch: values and gradients against PyTorch's own, on the CPU or, with --gpu, a GPU."""
import os
import threading
import unittest

import tilewright

try:
    import torch
except ImportError:
    torch = None

DEVICE = "cuda" if os.environ.get("TILEWRIGHT_TEST_TARGET") == "auto" else "cpu"
TYPES = [] if torch is None else [torch.float32] if DEVICE == "cpu" else [torch.bfloat16, torch.float16]


def standard(q, k, v, visible=None, scale=None, bias=None, cap=0.0):
    """o in double precision where gradients flow, tensors (batch, sequence, heads, dim)."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = q @ k.transpose(2, 3) * (scale or q.shape[-1] ** -0.5)
    if cap:
        s = cap * torch.tanh(s / cap)
    if bias is not None:
        s = s + bias
    if visible is not None:
        s = s.masked_fill(~visible, float("-inf"))
    lse = torch.logsumexp(s, -1)
    p = torch.exp(s - lse.masked_fill(lse == float("-inf"), 0).unsqueeze(-1))
    return (p @ v).transpose(1, 2), lse


def tensors(dtype, batch=2, rows=70, keys=90, heads=4, heads_kv=2, dim=32, dim_v=64, requires_grad=True):
    torch.manual_seed(1)
    shapes = (batch, rows, heads, dim), (batch, keys, heads_kv, dim), (batch, keys, heads_kv, dim_v)
    return [torch.randn(shape, device=DEVICE).to(dtype).requires_grad_(requires_grad) for shape in shapes]


def positions(rows=70, keys=90):
    return torch.arange(rows, device=DEVICE)[:, None], torch.arange(keys, device=DEVICE)[None, :]


@unittest.skipIf(torch is None, "PyTorch missing (Debian: python3-torch)")
@unittest.skipIf(torch is not None and DEVICE == "cuda" and not torch.cuda.is_available(), "PyTorch without CUDA")
class Case(unittest.TestCase):
    def close(self, got, expected, what=""):
        tolerance = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[got.dtype]
        error = (got.double() - expected.double()).abs().max().item()
        limit = tolerance * max(1.0, expected.abs().max().item())
        self.assertLessEqual(error, limit, what)

    def gradients(self, ours, reference, inputs):
        """Both outputs' gradients agree for the same random gradient of o."""
        d_o = torch.randn_like(ours)
        got = torch.autograd.grad(ours, inputs, d_o)
        expected = torch.autograd.grad(reference, inputs, d_o.to(reference.dtype))
        for name, a, b in zip("qkv", got, expected):
            self.close(a, b, f"d{name}")


class Semantics(Case):
    def test_flash_attn_func(self):
        i, j = positions()
        cases = [({}, {}), ({"causal": True}, {"visible": j <= i + 20}),
                 ({"window_size": (9, 4)}, {"visible": (j >= i + 11) & (j <= i + 24)}),
                 ({"causal": True, "window_size": (15, 0), "softmax_scale": 0.3},
                  {"visible": (j >= i + 5) & (j <= i + 20), "scale": 0.3}),
                 ({"softcap": 2.0}, {"cap": 2.0}),
                 ({"causal": True, "deterministic": True}, {"visible": j <= i + 20})]
        for dtype in TYPES:
            for arguments, meaning in cases:
                with self.subTest(dtype=dtype, **arguments):
                    q, k, v = tensors(dtype)
                    o, lse = tilewright.flash_attn_func(q, k, v, return_lse=True, **arguments)
                    expected, expected_lse = standard(q, k, v, **meaning)
                    self.assertEqual((o.dtype, lse.dtype, tuple(lse.shape)), (dtype, torch.float32, (2, 4, 70)))
                    self.close(o, expected, "o")
                    self.close(lse, expected_lse, "lse")
                    self.assertFalse(lse.requires_grad)
                    self.gradients(o, expected, (q, k, v))

    def test_expressions_and_tables(self):
        i, j = positions(90, 90)
        doc = (torch.arange(90, device=DEVICE) // 37).to(torch.int32)
        slopes = torch.tensor([0.1, 0.2, 0.3, 0.4], device=DEVICE)
        bias = -slopes.double()[:, None, None] * (i - j).abs()
        for dtype in TYPES:
            q, k, v = tensors(dtype, rows=90)
            o = tilewright.attention(q, k, v, mask="doc[q] == doc[k] and k <= q", tables={"doc": doc})
            expected, _ = standard(q, k, v, (doc[:, None] == doc[None, :]) & (j <= i))
            self.close(o, expected)
            self.gradients(o, expected, (q, k, v))
            o = tilewright.flash_attn_func(q, k, v, alibi_slopes=slopes)
            expected, _ = standard(q, k, v, bias=bias)
            self.close(o, expected)
            self.gradients(o, expected, (q, k, v))

    def test_rows_that_see_nothing(self):
        q, k, v = tensors(TYPES[0], rows=90, keys=70)
        o, lse = tilewright.flash_attn_func(q, k, v, causal=True, return_lse=True)
        self.assertTrue(bool((o[:, :20] == 0).all()) and bool(torch.isneginf(lse[:, :, :20]).all()))
        (d_q,) = torch.autograd.grad(o, q, torch.ones_like(o))
        self.assertTrue(bool((d_q[:, :20] == 0).all()))

    def test_numeric_gradient(self):
        """One derivative by differences, independent of PyTorch's rules."""
        q, k, v = tensors(torch.float32, rows=9, keys=11)
        if DEVICE != "cpu":
            self.skipTest("float32 on a GPU is three bfloat16 products; the CPU's run tests the rule")
        weight = torch.randn(2, 9, 4, 64)

        def value(x):
            return (tilewright.flash_attn_func(x, k.detach(), v.detach(), causal=True).double() * weight).sum().item()
        (d_q,) = torch.autograd.grad((tilewright.flash_attn_func(q, k, v, causal=True) * weight).sum(), q)
        direction = torch.randn_like(q)
        step = 1e-2
        with torch.no_grad():
            difference = (value(q + step * direction) - value(q - step * direction)) / (2 * step)
        self.assertAlmostEqual((d_q * direction).sum().item() / difference, 1, delta=2e-3)


class Memory(Case):
    def test_strides_are_taken_as_they_are(self):
        for dtype in TYPES:
            q, k, v = tensors(dtype, requires_grad=False)
            expected, _ = standard(q, k, v)
            packed = torch.randn(2, 90, 3, 2, 64, device=DEVICE).to(dtype)
            packed[:, :, 1, :, :32], packed[:, :, 2] = k, v
            flipped = q.transpose(1, 2).contiguous().transpose(1, 2)
            self.close(tilewright.flash_attn_func(flipped, packed[:, :, 1, :, :32], packed[:, :, 2]), expected)
            one = k[:1].expand(2, -1, -1, -1)
            self.close(tilewright.flash_attn_func(q, one, v), standard(q, one, v)[0])

    def test_gradients_of_a_sum(self):
        q, k, v = tensors(TYPES[0])
        tilewright.flash_attn_func(q, k, v).sum().backward()
        got = q.grad.clone()
        q.grad = None
        standard(q, k, v)[0].sum().backward()
        self.close(got, q.grad)

    def test_gradients_of_o_in_any_order(self):
        q, k, v = tensors(TYPES[0])
        d_o = torch.randn(2, 70, 4, 64, device=DEVICE).to(TYPES[0])
        expected = torch.autograd.grad(tilewright.flash_attn_func(q, k, v), (q, k, v), d_o)
        flipped = d_o.transpose(1, 2).contiguous().transpose(1, 2)
        for got, value in zip(torch.autograd.grad(tilewright.flash_attn_func(q, k, v), (q, k, v), flipped), expected):
            self.assertTrue(torch.equal(got, value) if DEVICE == "cpu" else torch.allclose(got, value, atol=1e-2))

    def test_no_gradients_where_none_are_asked_for(self):
        q, k, v = tensors(TYPES[0])
        with torch.no_grad():
            self.assertFalse(tilewright.flash_attn_func(q, k, v).requires_grad)
        self.assertIsNone(tilewright.flash_attn_func(q.detach(), k.detach(), v.detach()).grad_fn)
        k, v = k.detach(), v.detach()
        o = tilewright.flash_attn_func(q, k, v)
        self.assertTrue(o.requires_grad)
        o.backward(torch.ones_like(o))
        self.assertIsNone(k.grad)

    def test_tables_that_change_in_place(self):
        q, k, v = tensors(TYPES[0], rows=90, requires_grad=False)
        doc = torch.zeros(90, dtype=torch.int32, device=DEVICE)
        arguments = {"mask": "doc[q] == doc[k]", "tables": {"doc": doc}}
        tilewright.attention(q, k, v, **arguments)
        doc[50:] = 1
        visible = doc[:, None] == doc[None, :]
        self.close(tilewright.attention(q, k, v, **arguments), standard(q, k, v, visible)[0])


class Ratios(Case):
    def test_several_head_ratios_in_one_process(self):
        """Kernels that the ratio does not concern are shared between problems."""
        for heads_kv in (8, 2, 1, 4):
            inputs = tensors(TYPES[0], heads=8, heads_kv=heads_kv)
            o = tilewright.flash_attn_func(*inputs)
            expected, _ = standard(*inputs)
            self.close(o, expected)
            self.gradients(o, expected, inputs)
            with torch.no_grad():  # few queries: keys are split, and states merged
                q, k, v = tensors(TYPES[0], rows=1, keys=5000, heads=8, heads_kv=heads_kv, requires_grad=False)
                self.close(tilewright.flash_attn_func(q, k, v), standard(q, k, v)[0])


class Errors(Case):
    def test_arguments_that_would_wrap(self):
        q, k, v = tensors(TYPES[0], requires_grad=False)
        for options, message in (({"window_size": (2**64, 0)}, "window_left"), ({"causal": 2**32}, "causal"),
                                 ({"softmax_scale": 0.0}, "dropout"), ({"window_size": (-2, 0)}, "window_left")):
            with self.assertRaisesRegex((TypeError, ValueError), message):
                tilewright.flash_attn_func(q, k, v, **options)
        with self.assertRaisesRegex(TypeError, "mask: expected a text without NUL"):
            tilewright.attention(q, k, v, mask="k <= q\0 && k > 30")

    def test_refused(self):
        q, k, v = tensors(TYPES[0], requires_grad=False)
        for wrong, message in (((q, k, v.double()), "the same for q, k and v"), ((q[0], k, v), "q: expected 4 axes"),
                               ((q, k, v[:, 1:]), "v: expected shape"),
                               ((q.transpose(1, 3).contiguous().transpose(1, 3), k, v), "contiguous last axis")):
            with self.assertRaisesRegex((TypeError, ValueError, tilewright.TilewrightError), message):
                tilewright.flash_attn_func(*wrong)
        with self.assertRaisesRegex(ValueError, "k: expected a tensor on"):
            tilewright.flash_attn_func(q, k.to("meta"), v)
        doc = torch.zeros(90, dtype=torch.int64, device=DEVICE)
        with self.assertRaisesRegex(TypeError, "table doc: expected int32 or float32, found torch.int64"):
            tilewright.attention(q, k, v, mask="doc[k] == 0", tables={"doc": doc})
        with self.assertRaisesRegex(ValueError, "table doc: expected a tensor on"):
            tilewright.attention(q, k, v, mask="doc[k] == 0", tables={"doc": doc.int().to("meta")})
        with self.assertRaisesRegex(tilewright.TilewrightError, "table 'doc': expected shape .90., found .70."):
            tilewright.attention(q, k, v, mask="doc[k] == 0", tables={"doc": doc.int()[:70]})


class Threads(Case):
    def test_many(self):
        q, k, v = tensors(TYPES[0], requires_grad=False)
        expected = tilewright.flash_attn_func(q, k, v)
        right = []

        def work():
            for _ in range(20):
                right.append(torch.equal(tilewright.flash_attn_func(q, k, v), expected))
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(right, [True] * 160)


@unittest.skipIf(DEVICE == "cpu", "needs a GPU")
class Streams(Case):
    def test_the_current_stream_is_used(self):
        q, k, v = tensors(TYPES[0], rows=512, keys=512, dim=64, requires_grad=False)
        fresh = [torch.randn_like(x) for x in (q, k, v)]
        expected = tilewright.flash_attn_func(*fresh)
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        for _ in range(100):
            q.zero_(), k.zero_(), v.zero_()
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                torch.cuda._sleep(2_000_000)
                for to, value in zip((q, k, v), fresh):
                    to.copy_(value)
                o = tilewright.flash_attn_func(q, k, v)
            stream.synchronize()
            self.assertTrue(torch.equal(o, expected))

    def test_graphs(self):
        q, k, v = tensors(TYPES[0], rows=256, keys=256, dim=64, requires_grad=False)
        tilewright.flash_attn_func(q, k, v)  # prewarm
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            o = tilewright.flash_attn_func(q, k, v)
        for x in (q, k, v):
            x.normal_()
        graph.replay()
        self.assertTrue(torch.equal(o, tilewright.flash_attn_func(q, k, v)))

    def test_first_use_in_a_capture_is_refused(self):
        q, k, v = tensors(TYPES[0], rows=256, keys=256, dim=80, requires_grad=False)
        graph = torch.cuda.CUDAGraph()
        with self.assertRaisesRegex(tilewright.TilewrightError, "being captured"):
            with torch.cuda.graph(graph):
                tilewright.attention(q, k, v, score="s * 0.75")
        self.close(tilewright.attention(q, k, v, score="s * 0.75"), standard(q, k, v, scale=0.75 * 80 ** -0.5)[0])


if __name__ == "__main__":
    unittest.main()
