"""NaN and infinity in the inputs: what nobody sees does not matter.

Held to on every target: keys in tiles that the mask leaves out, since those are never read. On the CPU any key that a
query does not see; a GPU multiplies hidden keys of a tile that it visits by zero.
"""
import unittest

import numpy as np

from cases.case import CaseTest
from product import tool

SEQ, DIM = 1024, 64


class NonFinite(CaseTest):
    def tensors(self, bad, keys):
        clean = [self.normal(1, SEQ, 2, DIM) for _ in range(4)]
        dirty = [t.copy() for t in clean]
        dirty[1][:, keys], dirty[2][:, keys] = bad, bad
        return clean, dirty

    def test_keys_that_nobody_sees(self):
        for bad in (np.nan, np.inf):
            for dtype in ("fp32", "bf16"):
                with self.subTest(bad=bad, dtype=dtype):
                    clean, dirty = self.tensors(bad, slice(512, None))
                    _, expected, _ = self.run_arrays(clean, "--mask", "k < 512", dtype=dtype)
                    _, results, _ = self.run_arrays(dirty, "--mask", "k < 512", dtype=dtype)
                    self.assert_finite(results)
                    self.assertFalse(results["dk"][:, 512:].any() or results["dv"][:, 512:].any())
                    # GPUs may add dQ up in any order.
                    self.assert_same(results, expected, within=0 if tool.TARGET == "cpu" else 1e-2)

    def test_keys_that_later_queries_see(self):
        """Queries from 768 on see NaN and give it; the first 512 are as if nothing were wrong."""
        clean, dirty = self.tensors(np.nan, slice(768, None))
        rows = lambda r: {"o": r["o"][:, :512], "lse": r["lse"][:, :, :512], "dq": r["dq"][:, :512]}
        for dtype in ("fp32", "bf16"):
            with self.subTest(dtype=dtype):
                _, expected, _ = self.run_arrays(clean, "--causal", dtype=dtype)
                _, results, _ = self.run_arrays(dirty, "--causal", dtype=dtype)
                self.assert_same(rows(results), rows(expected), within=0 if tool.TARGET == "cpu" else 1e-2)
                self.assertTrue(np.isnan(results["lse"][:, :, 768:]).all())

    def test_hidden_keys_of_huge_value(self):
        """Finite values of hidden keys have no influence anywhere: not even as an offset that dQ is centred by."""
        for mask, hidden in (("k < 500", slice(500, None)), ("k % 2 == 0", slice(1, None, 2))):
            for dtype in ("fp32", "bf16"):
                with self.subTest(mask=mask, dtype=dtype):
                    clean, dirty = self.tensors(1e30, hidden)
                    _, expected, _ = self.run_arrays(clean, "--mask", mask, dtype=dtype)
                    _, results, _ = self.run_arrays(dirty, "--mask", mask, dtype=dtype)
                    self.assert_same(results, expected, within=0 if tool.TARGET == "cpu" else 1e-2)

    @unittest.skipUnless(tool.TARGET == "cpu", "a promise of the CPU alone")
    def test_hidden_keys_beside_seen_ones(self):
        clean, dirty = self.tensors(np.nan, slice(1, None, 2))
        for dtype in ("fp32", "bf16"):
            with self.subTest(dtype=dtype):
                _, expected, _ = self.run_arrays(clean, "--mask", "k % 2 == 0", dtype=dtype)
                _, results, _ = self.run_arrays(dirty, "--mask", "k % 2 == 0", dtype=dtype)
                self.assert_same(results, expected)


if __name__ == "__main__":
    unittest.main()
