"""H03: every score far below zero. LSE below -88.7 makes exp(0 - LSE) infinite, so padding must not reach the exponent."""
import math
import unittest

from cases.case import CaseTest
from product import tensors

LENGTHS = (64, 192, 704, 1000, 1216, 1280)


class LowScores(CaseTest):
    def make(self, sq, sk, dim, heads=1):
        q, k = 0.1 * self.normal(1, sq, heads, dim), 0.1 * self.normal(1, sk, heads, dim)
        q[..., 0] = 1
        k[..., 0] = -120 * math.sqrt(dim)
        return q, k, self.normal(1, sk, heads, dim), self.normal(1, sq, heads, dim)

    def check(self, data, dtype, *options, visible=None, low=-125):
        _, results, inputs = self.run_arrays(data, *options, dtype=dtype)
        self.assert_finite(results)
        self.check_rule(results, inputs, dtype, visible=visible)
        lse = tensors.load(results["lse"])
        self.assertTrue((lse > low).all() and (lse < -105).all(), f"LSE from {lse.min()} to {lse.max()}")
        return results

    def lengths(self, dim, dtype):
        for length in LENGTHS:
            with self.subTest(length=length, dim=dim, dtype=dtype):
                data = self.make(length, length, dim)
                every = self.check(data, dtype)
                self.assert_same(every, self.check(data, dtype, "--mask", "k < sk"), "with a mask that hides nothing", 1e-6)
                square = lambda p: p.k <= p.q
                causal = self.check(data, dtype, "--causal", visible=square)
                self.assert_same(causal, self.check(data, dtype, "--mask", "k <= q", visible=square), "as a mask", 1e-6)

    def test_dim_32_bf16(self):
        self.lengths(32, "bf16")

    def test_dim_64_bf16(self):
        self.lengths(64, "bf16")

    def test_dim_128_bf16(self):
        self.lengths(128, "bf16")

    def test_dim_64_fp16(self):
        self.lengths(64, "fp16")

    def test_dims_fp16(self):
        for dim in (32, 128):
            for length in (192, 1000):
                self.check(self.make(length, length, dim), "fp16")

    def test_one_query(self):
        for dtype in ("bf16", "fp16"):
            for dim in (32, 64, 128):
                for keys in (128, 97):
                    with self.subTest(dtype=dtype, dim=dim, keys=keys):
                        data = self.make(1, keys, dim, heads=2)
                        self.assert_same(self.check(data, dtype), self.check(data, dtype, "--causal"), "causal", 1e-6)


if __name__ == "__main__":
    unittest.main()
