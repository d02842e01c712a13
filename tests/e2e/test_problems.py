"""Every generated problem of the families that TILEWRIGHT_TEST_FAMILIES names (default: all), or with
TILEWRIGHT_TEST_EVERY=n every n-th of them, where a run is slow."""
import os
import unittest

from e2e.against_reference import failures
from e2e.problems import kernels, problems
from product import tool


class GeneratedProblems(unittest.TestCase):
    def setUp(self):
        self.workspace = tool.Workspace()
        self.addCleanup(self.workspace.close)

    def test_against_float64(self):
        names = os.environ.get("TILEWRIGHT_TEST_FAMILIES", " ".join(kernels())).split()
        every = [p for name in names for p in problems(name)][:: int(os.environ.get("TILEWRIGHT_TEST_EVERY", "1"))]
        fitting = [p for p in every if tool.TARGET == "cpu" or p.on_cuda]
        for problem in fitting:
            with self.subTest(str(problem)):
                found = failures(self.workspace, problem)
                self.assertFalse(found, "\n".join([str(problem), *found]))
        print(f"{len(fitting)} problems checked on {tool.TARGET}, {len(every) - len(fitting)} do not apply to it")
        self.assertGreater(len(fitting), len(every) // 2)


if __name__ == "__main__":
    unittest.main()
