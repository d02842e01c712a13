"""Tables and literals at the ends of their types: bounds of tiles must not wrap where masks do not."""
import unittest

import numpy as np

from product import tool

LOWEST, HIGHEST = -2**31, 2**31 - 1
TABLE_MASKS = ("k <= w[q]", "k > w[q]", "q - k <= w[q]", "k - q <= w[q]", "w[k] != 0 - k", "k == w[q] || k == 0",
               "w[k] <= w[q] || k == 1", "abs(k - q) <= w[q] || k == 2", "2 * k <= w[q] + q", "w[q] - 5 < k || k == 3")
LITERAL_MASKS = ("k <= 9223372036854775807", "k <= 9223372036854775806 && k <= q", "0 - k != 9223372036854775806",
                 "k // 3 <= 9223372036854775807", "k // 1000000 <= 9000000000000000", "k <= 2147483647",
                 "0 - 9223372036854775807 <= k", "k * 1000000000 <= 9000000000000000000")


class ExtremeIntegers(unittest.TestCase):
    def setUp(self):
        self.workspace = tool.Workspace()
        self.addCleanup(self.workspace.close)

    def verified(self, mask, *arguments):
        for schedule in ("tile_q=64,tile_kv=64", "backward=two_kernel"):
            outcome = self.workspace("run", "--target", tool.TARGET, "--dtype=bf16", "--seq=192", "--mask", mask, "--verify",
                                     "--backward", "--schedule", schedule, *arguments)
            self.assertEqual(outcome.code, 0, str(outcome))

    def test_ordinary_tables_still_skip_tiles(self):
        reach, path = np.full(1024, 100, "i4"), self.workspace.folder / "reach.npy"
        np.save(path, reach)
        for mask in ("k - q <= w[q] && q - k <= w[q]", "k <= q + sk - sq + w[q]", "2 * k <= q + w[q]", "abs(q - k) <= w[q] - 5"):
            report = self.workspace("run", "--target", tool.TARGET, "--seq=1024", "--mask", mask, "--table", f"w={path}", "--json")
            self.assertGreater(report.json["tiles"]["empty"], 0, mask)
            self.assertGreater(report.json["tiles"]["full"], 0, mask)

    def test_a_row_with_a_sentinel(self):
        for sentinel in (LOWEST, LOWEST + 1, HIGHEST - 1, HIGHEST):
            table = np.random.default_rng(1).integers(0, 150, 192).astype("i4")
            table[40] = sentinel
            path = self.workspace.folder / f"w{sentinel}.npy"
            np.save(path, table)
            for mask in TABLE_MASKS:
                with self.subTest(mask=mask, sentinel=sentinel):
                    self.verified(mask, "--table", f"w={path}")

    @unittest.skipUnless(tool.TARGET == "cpu", "the same everywhere")
    def test_kernels_read_tables_where_they_are(self):
        """The last tile's rows reach past the table's end."""
        path, emitted = self.workspace.folder / "w.npy", self.workspace.folder / "emitted"
        np.save(path, np.zeros(33, "i4"))
        self.workspace("compile", "--target=sm_90a", "--seq=33", "--mask=k >= w[q]", "--table", f"w={path}", "--emit", emitted)
        sources = [file.read_text() for file in emitted.glob("*.cu")]
        if not sources:
            self.skipTest("NVRTC missing")
        for source in sources:
            self.assertIn("args.tables[0], 0, q < sq ? q : 0)", source)

    def test_literals(self):
        for mask in LITERAL_MASKS:
            with self.subTest(mask=mask):
                self.verified(mask)

    def test_a_condition_that_never_holds(self):
        outcome = self.workspace("run", "--target", tool.TARGET, "--seq=64", "--mask", "k > 9223372036854775807")
        self.assertEqual(outcome.code, 2)
        self.assertIn("no query sees any key", str(outcome))


if __name__ == "__main__":
    unittest.main()
