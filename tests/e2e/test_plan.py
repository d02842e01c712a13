"""`tilewright plan`: the same plan for people and for programs, and refusals that say what is accepted."""
import unittest

from product import tool
from errors.refusal import RefusalTest

MODEL = ["--parameter", "embed=100x64:0.1", "--parameter", "norm=64", "--parameter", "head=100x64:0.1"]


class Plans(RefusalTest):
    def plan(self, *options):
        outcome = self.workspace("plan", *MODEL, *options)
        self.assertEqual(outcome.code, 0, str(outcome))
        return outcome

    def test_every_strategy_as_text_and_as_json(self):
        for strategy in ("naive", "flat", "overlap", "bucketed", "zero1-broadcast", "zero1"):
            for rank in (0, 2):
                options = ["-n", "3", "--strategy", strategy, "--bucket", "16K", "--rank", str(rank)]
                text = self.plan(*options).stdout
                found = self.plan(*options, "--json").json
                plan, costs = found["plan"], found["costs"]
                self.assertIn(f"plan {strategy} for 3 ranks, 3 parameters, {len(plan['ops'])} ops, "
                              f"hash {found['hash'][:16]}\n", text)
                for op in plan["ops"]:
                    self.assertIn(f" {op['kind']} {op['name']} ", text)
                for category, size in costs["memory_bytes"].items():
                    self.assertRegex(text, f"(?m)^  {category} +{size} bytes$")
                for kind, traffic in costs["traffic"].items():
                    self.assertRegex(text, f"(?m)^  {kind} +{traffic['calls']} calls +{traffic['sent_bytes']} bytes sent$")

    def test_models(self):
        for model, count, tensors in (("small", 128_625_408, 111), ("medium", 423_183_360, 219)):
            found = self.workspace("plan", "--model", model, "--json").json
            self.assertEqual(len(found["plan"]["parameters"]), tensors)
            self.assertGreaterEqual(found["costs"]["memory_bytes"]["parameters"], 4 * count)
            self.assertLess(found["costs"]["memory_bytes"]["parameters"], 4.004 * count)
        self.refused(self.workspace("plan", "--model", "huge"), "huge", "tiny", "medium")

    def test_bytes_of_a_strategy(self):
        model = 4 * (2 * 6400 + 64)  # one bucket, which 2 ranks share without padding
        memory = {}
        for strategy in ("bucketed", "zero1"):
            costs = self.plan("-n", "2", "--strategy", strategy, "--json").json["costs"]
            memory[strategy] = costs["memory_bytes"]
            self.assertEqual(memory[strategy]["parameters"], model + 4 * 64)  # padded to 128 elements
        self.assertEqual(memory["bucketed"]["optimizer state"], 2 * (model + 256))
        self.assertEqual(memory["zero1"]["optimizer state"], model + 256)

    def test_refusals(self):
        for option, value, *needles in [
                ("--parameter", "w", "NAME=AxB", "'w'"), ("--parameter", "w=3y4", "'w=3y4'"),
                ("--parameter", "w=3:lots", "'w=3:lots'"), ("--parameter", "norm=5", "two parameters", "norm"),
                ("--strategy", "zero9", "zero9", "zero1-broadcast"), ("--bucket", "big", "25M", "'big'"),
                ("--bucket", "0", "bucket size"), ("--ranks", "0", "world size", "0"), ("--rank", "4", "0 to 0", "4"),
                ("--accumulation", "0", "accumulation"), ("--parameter-type", "fp16", "fp32 or bf16", "fp16"),
                ("--reduction-type", "int", "fp32 or bf16", "int")]:
            with self.subTest(f"{option} {value}"):
                self.refused(self.workspace("plan", *MODEL, option, value), *needles)


if __name__ == "__main__":
    unittest.main()
