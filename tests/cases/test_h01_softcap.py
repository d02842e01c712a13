"""H01: a softcap that does not cap, seen only where scores are large."""
import math
import unittest

import numpy as np

from cases.case import CaseTest
from product import tool

DIM = 8 if tool.TARGET == "cpu" else 64


def arrays(swapped=False):
    q, k = np.zeros((1, 1, 1, DIM), "f4"), np.zeros((1, 2, 1, DIM), "f4")
    v = k.copy()
    seen = 1 if swapped else 0
    q[..., 0] = k[:, seen, :, 0] = 10
    v[:, seen] = 1
    return q, k, v, np.ones_like(q)


class Softcap(CaseTest):
    def test_caps_large_scores(self):
        for dtype, near in (("fp32", 1e-5), ("fp16", 6e-3)):
            with self.subTest(dtype=dtype):
                _, capped, _ = self.run_arrays(arrays(), "--scale", "1", "--softcap", "5", dtype=dtype)
                np.testing.assert_allclose(capped["o"].astype("f8"), 1 / (1 + math.exp(-5)), atol=near)
                np.testing.assert_allclose(capped["lse"], math.log(math.exp(5) + 1), atol=1e-5)

    def test_swapped_keys_swap_gradient_rows(self):
        _, plain, inputs = self.run_arrays(arrays(), "--scale", "1", "--softcap", "5")
        _, swapped, _ = self.run_arrays(arrays(True), "--scale", "1", "--softcap", "5")
        self.assert_same({n: plain[n] for n in ("o", "lse", "dq")}, {n: swapped[n] for n in ("o", "lse", "dq")}, within=1e-6)
        self.assert_same({n: plain[n] for n in ("dk", "dv")}, {n: swapped[n][:, ::-1] for n in ("dk", "dv")}, within=1e-6)
        self.check_rule(plain, inputs, "fp32", scale=1, softcap=5)

    def test_softcap_is_the_score_it_stands_for(self):
        for dtype in ("fp32", "fp16"):
            _, capped, _ = self.run_arrays(arrays(), "--scale", "1", "--softcap", "5", dtype=dtype)
            _, spelt, _ = self.run_arrays(arrays(), "--scale", "1", "--score", "5 * tanh(s / 5)", dtype=dtype)
            self.assert_same(capped, spelt, within=1e-6)

    def test_the_cap_comes_before_the_mask(self):
        _, results, _ = self.run_arrays(arrays(), "--scale", "1", "--softcap", "5", "--mask", "k == 0")
        np.testing.assert_allclose(results["lse"], 5, atol=1e-5)
        np.testing.assert_allclose(results["o"], 1, atol=1e-6)

    def test_large_scores_of_either_sign(self):
        for cap, scale in ((0.5, 1.0), (50.0, 2.0), (30.0, -1.0), (1e-3, 1.0), (1e4, 1.0)):
            with self.subTest(cap=cap, scale=scale):
                data = [4 * self.normal(1, 70, 2, DIM) for _ in range(2)] + [self.normal(1, 70, 2, DIM) for _ in range(2)]
                _, results, inputs = self.run_arrays(data, "--scale", scale, "--softcap", cap)
                self.check_rule({n: results[n] for n in ("o", "lse", "dv")}, inputs, "fp32", scale=scale, softcap=cap)
                self.assert_finite(results)


if __name__ == "__main__":
    unittest.main()
