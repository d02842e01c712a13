"""H06: a narrow band. The last rows' first block of keys is masked as a whole: a maximum of -inf in the exponent."""
import math
import unittest

import numpy as np

from cases.case import CaseTest
from product import tool

SPELLINGS = (["--mask", "k <= q && q - k < 10"], ["--causal", "--window", "9,0"], ["--window", "9,0"])


class NarrowBand(CaseTest):
    def test_ones(self):
        for length in (640, 513, 4096):
            ones = np.ones((1, length, 1, 8), "f4")
            lse = 8 / math.sqrt(8) + np.log(np.minimum(np.arange(length) + 1, 10))
            first = None
            for spelling in SPELLINGS:
                with self.subTest(length=length, spelling=spelling):
                    outcome, results, _ = self.run_arrays((ones, ones, ones), *spelling)
                    self.assertTrue((results["o"] == 1).all())
                    np.testing.assert_allclose(results["lse"][0, 0], lse, atol=1e-5)
                    first = first or results
                    self.assert_same(first, results, "between spellings")
                    self.few_tiles(outcome.json, length)

    def few_tiles(self, report, length):
        tile = report["schedule"]["tile_q"]
        rows = -(-length // tile)
        used = report["tiles"]["full"] + report["tiles"]["partial"]
        # A band of 10 keys under tile_q queries spans tile_q + 9 keys.
        most = (tile + 9 - 2) // report["schedule"]["tile_kv"] + 2
        self.assertLessEqual(used, rows * most, report["tiles"])

    def test_random(self):
        mirrored = lambda p: (p.k >= p.q) & (p.k - p.q < 10)
        band = lambda p: (p.k <= p.q) & (p.q - p.k < 10)
        for length in (640, 513):
            data = [self.normal(1, length, 1, 8) for _ in range(4)]
            for spelling in SPELLINGS:
                _, results, inputs = self.run_arrays(data, *spelling)
                self.check_rule(results, inputs, "fp32", visible=band)
            _, results, inputs = self.run_arrays(data, "--mask", "k >= q && k - q < 10")
            self.check_rule(results, inputs, "fp32", visible=mirrored)

    def test_bands_of_one_and_of_none(self):
        data = [self.normal(1, 300, 1, 8) for _ in range(4)]
        _, results, inputs = self.run_arrays(data, "--window", "0,0")  # each query sees one key
        if tool.TARGET == "cpu":
            self.assertTrue((results["o"] == data[2]).all())
        else:  # an fp32 operand is three bf16 planes there
            self.check_rule(results, inputs, "fp32", visible=lambda p: p.k == p.q)
        _, results, inputs = self.run_arrays(data, "--mask", "k < q && q - k < 2")
        self.check_rule(results, inputs, "fp32", visible=lambda p: (p.k < p.q) & (p.q - p.k < 2))
        self.assertFalse(results["o"][:, 0].any())


if __name__ == "__main__":
    unittest.main()
