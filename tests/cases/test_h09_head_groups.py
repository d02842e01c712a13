"""H09: any number of query heads on a kv head, and head counts that do not divide."""
import unittest

from cases.case import CaseTest
from product import tool

KEYS, BATCH, KV_HEADS = (512, 2, 2) if tool.TARGET == "cpu" else (4096, 4, 8)


class HeadGroups(CaseTest):
    def test_every_group_size(self):
        for group in (1, 2, 3, 5, 6, 7, 8, 12, 16):
            with self.subTest(group=group):
                heads = group * KV_HEADS
                data = [self.normal(BATCH, 1, heads, 128), self.normal(BATCH, KEYS, KV_HEADS, 128),
                        self.normal(BATCH, KEYS, KV_HEADS, 128), self.normal(BATCH, 1, heads, 128)]
                _, results, inputs = self.run_arrays(data, dtype="bf16")
                self.check_rule(results, inputs, "bf16")

    def test_decode_over_4096_keys(self):
        data = [self.normal(1, 1, 12, 128), *(self.normal(1, 4096, 1, 128) for _ in range(2)), self.normal(1, 1, 12, 128)]
        _, results, inputs = self.run_arrays(data, "--causal", dtype="bf16")
        self.check_rule(results, inputs, "bf16")

    def test_groups_of_longer_queries(self):
        for heads, kv_heads in ((3, 1), (7, 1), (10, 2), (33, 3)):
            with self.subTest(heads=heads):
                data = [self.normal(1, 45, heads, 16), *(self.normal(1, 50, kv_heads, 16) for _ in range(2)),
                        self.normal(1, 45, heads, 16)]
                _, results, inputs = self.run_arrays(data, "--causal")
                self.check_rule(results, inputs, "fp32", visible=lambda p: p.k <= p.q + p.sk - p.sq)

    def test_bad_head_counts(self):
        for heads in ("33:2", "3:2", "8:0", "0:1", "4:8"):
            with self.subTest(heads=heads):
                outcome = self.workspace("run", "--target=cpu", "--seq=8", f"--heads={heads}")
                self.assertEqual(outcome.code, 2, str(outcome))
                for number in heads.split(":"):
                    self.assertRegex(outcome.stderr, rf"\b{number}\b")


if __name__ == "__main__":
    unittest.main()
