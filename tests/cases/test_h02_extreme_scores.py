"""H02: products beyond fp16, and scores at the floor of fp32 that are numbers, not masks."""
import unittest

import numpy as np

from cases.case import CaseTest

FLOOR = -3.4e38


class ExtremeScores(CaseTest):
    def test_products_beyond_fp16(self):
        q = np.full((1, 128, 1, 64), 60, "f2")
        v, do = self.normal(1, 128, 1, 64).astype("f2"), self.normal(1, 128, 1, 64).astype("f2")
        sign = np.where(np.arange(128) % 2, -1, 1)[None, :, None, None].astype("f2")
        for k, rows, lse in ((q, slice(None), 28804.852), (q * sign, slice(None, None, 2), 28804.159)):
            _, results, inputs = self.run_arrays((q, k, v, do), dtype="fp16")
            self.assert_finite(results)
            self.check_rule(results, inputs, "fp16")
            np.testing.assert_allclose(results["lse"], lse, atol=2e-3)
            mean = v[:, rows].astype("f8").mean(1, keepdims=True)
            np.testing.assert_allclose(results["o"].astype("f8"), np.broadcast_to(mean, v.shape), atol=2e-3)

    def tensors_of_case(self):
        return [self.normal(2, 441, 12, 64) for _ in range(4)]

    def test_floor_on_some_keys_is_as_good_as_a_mask(self):
        data = self.tensors_of_case()
        for dtype in ("fp32", "bf16"):
            _, floored, inputs = self.run_arrays(data, "--score", f"where(k < 128, {FLOOR}, s)", dtype=dtype)
            _, masked, _ = self.run_arrays(data, "--mask", "k >= 128", dtype=dtype)
            self.assert_finite(floored)
            self.assertFalse(floored["dk"][:, :128].any())
            visible = lambda p: p.k >= 128
            self.check_rule(floored, inputs, dtype, visible=visible)
            self.check_rule(masked, inputs, dtype, visible=visible)

    # The score, which rows of it are at the floor, and its numpy form.
    FLOORED = (
        (f"{FLOOR}", np.ones(441, bool), lambda s, p: (FLOOR + 0 * s, 0)),
        (f"where(q % 3 == 0, {FLOOR}, s)", np.arange(441) % 3 == 0, lambda s, p: (np.where(p.q % 3 == 0, FLOOR, s), p.q % 3 != 0)),
    )

    def test_rows_at_the_floor_average_all_keys(self):
        data = self.tensors_of_case()
        for score, floored, value in self.FLOORED:
            with self.subTest(score=score):
                _, results, inputs = self.run_arrays(data, "--score", score)
                self.assert_finite(results)
                np.testing.assert_allclose(results["lse"][:, :, floored], FLOOR, rtol=1e-6)
                self.assertFalse(results["dq"][:, floored].any())
                # LSE has no room for log 441 beside 3.4e38, yet P is 1/441 in the gradients too.
                self.check_rule({n: results[n] for n in ("o", "dq", "dk", "dv")}, inputs, "fp32", score=value)

    def test_equal_products_of_any_size_share_the_row(self):
        """Without a score function too: keys that all have the same huge product get the same weight in the gradients."""
        v, do = self.normal(1, 100, 2, 64), self.normal(1, 100, 2, 64)
        q, k = np.zeros_like(v), np.zeros_like(v)
        q[..., 0] = 1
        for product, scale in ((3e4, 1), (-3e4, 1), (1e10, 1), (2e38, 1), (1e10, -0.3), (-1e20, 0.0883), (3e38, 0.7)):
            for dtype in ("fp32", "bf16"):
                with self.subTest(product=product, scale=scale, dtype=dtype):
                    k[..., 0] = product
                    _, results, inputs = self.run_arrays((q, k, v, do), "--scale", f"{scale}", dtype=dtype)
                    self.check_rule({n: results[n] for n in ("o", "dv")}, inputs, dtype, scale=scale)

    def test_huge_products_beside_small_ones(self):
        """Some rows of a tile with products of any size, some without; the largest keys share the row, the rest get nothing."""
        q, k, v, do = (self.normal(1, 200, 2, 64) for _ in range(4))
        q[..., 0] = 0
        q[:, ::5] = k[:, ::3] = 0
        q[:, ::5, :, 0] = 1
        for dtype in ("fp32", "bf16", "fp16"):
            k[:, ::3, :, 0] = 6e4 if dtype == "fp16" else 1e12
            for options, visible in (((), None), (("--causal",), lambda p: p.k <= p.q)):
                with self.subTest(dtype=dtype, options=options):
                    _, results, inputs = self.run_arrays((q, k, v, do), *options, "--scale", "1", dtype=dtype)
                    self.check_rule({n: results[n] for n in ("o", "dv")}, inputs, dtype, visible=visible, scale=1)

    def test_ceiling_and_floor_meet(self):
        """The largest and the smallest finite score in one row, and a large one with a plain neighbour."""
        data = [self.normal(1, 100, 2, 16) for _ in range(4)]
        for score, value in (("where(k == 7, 3.4e38, -3.4e38)", lambda s, p: (np.where(p.k == 7, 3.4e38, -3.4e38) + 0 * s, 0)),
                             ("where(k == 99, s + 1e30, s)", lambda s, p: (np.where(p.k == 99, s + 1e30, s), 1))):
            with self.subTest(score=score):
                _, results, inputs = self.run_arrays(data, "--score", score)
                self.assert_finite(results)
                self.check_rule({n: results[n] for n in ("o", "dv")}, inputs, "fp32", score=value)


if __name__ == "__main__":
    unittest.main()
