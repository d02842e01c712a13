"""H05: backward with a softcap ends, and is right."""
import unittest

from cases.case import CaseTest
from product import tool

ON_CPU = tool.TARGET == "cpu"


class SoftcapBackward(CaseTest):
    def test_ends_within_a_minute(self):
        heads = ("2", "2:1") if ON_CPU else ("32", "32:4")
        for number, options in enumerate((["--softcap=10"], ["--softcap=1"], ["--softcap=50"], ["--softcap=10", "--window=128,0"])):
            for length in (1024, 1000, 1):
                with self.subTest(options=options, length=length):
                    outcome = self.workspace("run", "--target", tool.TARGET, "--batch=2", f"--heads={heads[number % 2]}",
                                             f"--seq={length}", "--dim=128", "--dtype=bf16", "--causal", "--backward", "--verify",
                                             "--json", *options, timeout=60)
                    self.assertEqual(outcome.code, 0, str(outcome))
                    self.assertTrue(outcome.json["ok"])

    def test_derivative_of_the_cap(self):
        for dtype in ("bf16", "fp32"):
            data = [3 * self.normal(1, 130, 2, 64) for _ in range(2)] + [self.normal(1, 130, 2, 64) for _ in range(2)]
            _, results, inputs = self.run_arrays(data, "--causal", "--softcap", "10", dtype=dtype)
            self.check_rule(results, inputs, dtype, softcap=10, visible=lambda p: p.k <= p.q)

    def test_no_cap_is_the_plain_kernel(self):
        data = [self.normal(2, 100, 2, 64) for _ in range(4)]
        _, plain, _ = self.run_arrays(data, "--causal")
        _, capless, _ = self.run_arrays(data, "--causal", "--softcap", "0")
        self.assert_same(plain, capless)


if __name__ == "__main__":
    unittest.main()
