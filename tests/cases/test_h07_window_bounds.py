"""H07: bounds of a window at S - 1, at the largest integer and below zero; rows that see nothing."""
import unittest

import numpy as np

from cases.case import CaseTest
from product import tensors, tool

# Bits are compared: the fused backward of GPUs adds dQ up in no fixed order.
SAME_BITS = [] if tool.TARGET == "cpu" else ["--schedule", "backward=two_kernel"]
LENGTH, HEADS, DIM = (2048, 2, 128) if tool.TARGET == "cpu" else (16384, 8, 128)


class WindowBounds(CaseTest):
    def test_windows_that_lose_no_key_are_causal(self):
        data = [self.normal(1, LENGTH, HEADS, DIM) for _ in range(4)]
        _, causal, _ = self.run_arrays(data, "--causal", *SAME_BITS, dtype="fp16")
        for window in ("-1,0", f"{LENGTH},0", f"{LENGTH - 1},0"):
            _, results, _ = self.run_arrays(data, "--window", window, *SAME_BITS, dtype="fp16")
            self.assert_same(causal, results, f"with window {window}")
        _, shorter, _ = self.run_arrays(data, "--window", f"{LENGTH - 2},0", *SAME_BITS, dtype="fp16")
        self.assertEqual(causal["lse"][..., :-1].tobytes(), shorter["lse"][..., :-1].tobytes())
        self.assertTrue((causal["lse"][..., -1] > shorter["lse"][..., -1]).all())
        self.assertEqual(causal["o"][:, :-1].tobytes(), shorter["o"][:, :-1].tobytes())

    def test_huge_bounds_hide_nothing(self):
        data = [self.normal(1, n, 2, 64) for n in (300, 100, 100, 300)]
        _, plain, _ = self.run_arrays(data, *SAME_BITS, dtype="fp16")
        for window in ("-1,2147483647", "2147483647,2147483647", "399,299", "9223372036854775807,9223372036854775807"):
            _, results, _ = self.run_arrays(data, "--window", window, *SAME_BITS, dtype="fp16")
            self.assert_same(plain, results, f"with window {window}")

    def test_bad_bounds(self):
        for window in ("-3,0", "5,-2", "5", "a,b", ",", "1,", "-9223372036854775808,0"):
            with self.subTest(window=window):
                outcome = self.workspace("run", "--target=cpu", "--seq=10", f"--window={window}")
                self.assertEqual(outcome.code, 2, str(outcome))
                self.assertRegex(outcome.stderr, r"-1 for (unbounded|no bound)")

    def test_more_queries_than_keys(self):
        for sq, sk, options, blind in ((2048, 1024, ["--causal"], 1024), (129, 33, ["--window", "32,64"], 32)):
            with self.subTest(sq=sq, sk=sk):
                data = [self.normal(1, n, 1, 64) for n in (sq, sk, sk, sq)]
                outcome, results, inputs = self.run_arrays(data, *options, dtype="fp16")
                self.assertFalse(results["o"][:, :blind].any())
                self.assertTrue(np.isneginf(results["lse"][..., :blind]).all())
                self.assertFalse(results["dq"][:, :blind].any())
                self.assertTrue(np.isfinite(results["lse"][..., blind:]).all())
                self.assertTrue(tensors.load(results["o"])[:, blind:].any(3).all())
                self.assertEqual(outcome.json["rows_that_see_nothing"], blind)
                left, right = (-1, 0) if options == ["--causal"] else (32, 64)

                def visible(p):
                    at = p.q + p.sk - p.sq
                    return ((left < 0) | (p.k >= at - left)) & (p.k <= at + right)

                self.check_rule(results, inputs, "fp16", visible=visible)

    def test_the_run_says_so_in_words(self):
        outcome = self.workspace("run", "--target", tool.TARGET, "--seq=129:33", "--window=32,64")
        self.assertRegex(outcome.stdout, r"32 of 129 query rows see no key")


if __name__ == "__main__":
    unittest.main()
