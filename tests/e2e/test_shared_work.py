"""Forwards whose keys are cut into parts that several blocks compute, and those whose tiles hold all heads of a group:
the generated problems again, with schedules that ask for it (split_kv on the CPU and Hopper, pack_heads on Hopper)."""
import os
import re
import unittest

from e2e.against_reference import failures
from e2e.problems import kernels, problems
from product import tool


def packs(problem):
    group = problem.heads[0] // problem.heads[1]
    return group > 1 and not (problem.mask and re.search(r"\bh\b", problem.mask.text))


class SharedWork(unittest.TestCase):
    def setUp(self):
        self.workspace = tool.Workspace()
        self.addCleanup(self.workspace.close)

    def check(self, fitting, schedule_of):
        every = [p for name in kernels() for p in problems(name) if tool.TARGET == "cpu" or p.on_cuda and p.dtype != "fp32"]
        chosen = [p for p in every if fitting(p)][:: int(os.environ.get("TILEWRIGHT_TEST_EVERY", "4"))]
        for problem in chosen:
            with self.subTest(str(problem)):
                found = failures(self.workspace, problem, "--schedule", schedule_of(problem))
                self.assertFalse(found, "\n".join([str(problem), *found]))
        print(f"{len(chosen)} problems checked on {tool.TARGET}")
        self.assertGreater(len(chosen), 5)

    def test_split_keys(self):
        self.check(lambda p: True, lambda p: f"forward.split_kv={2 + p.number % 4}")

    @unittest.skipIf(tool.TARGET == "cpu", "heads are packed on GPUs")
    def test_packed_heads(self):
        self.check(packs, lambda p: "forward.pack_heads=true,forward.split_kv=1")

    @unittest.skipIf(tool.TARGET == "cpu", "heads are packed on GPUs")
    def test_packed_heads_and_split_keys(self):
        self.check(packs, lambda p: f"forward.pack_heads=true,forward.split_kv={2 + p.number % 4}")


if __name__ == "__main__":
    unittest.main()
