"""What the numeric cases share: arrays to files, the run, and the float64 rule for every output."""
import unittest

import numpy as np

from product import tensors, tool
from product.reference import attention

OUTPUTS = ("o", "lse", "dq", "dk", "dv")


class CaseTest(unittest.TestCase):
    def setUp(self):
        self.workspace = tool.Workspace()
        self.addCleanup(self.workspace.close)
        self.rng = np.random.default_rng(0)

    def normal(self, *shape):
        return self.rng.standard_normal(shape).astype("f4")

    def run_arrays(self, arrays, *options, dtype="fp32", tables=None, timeout=120, code=0):
        """Runs on q, k, v and, for gradients, dO, all (batch, sequence, heads, dim): the outcome, the results in
        float64, and the stored inputs in float64. Runs on the target under test."""
        folder = self.workspace.fresh("run")
        stored = [tensors.store(a, dtype) for a in arrays]
        arguments = ["run", "--target", tool.TARGET, "--layout", "bshd", "--dtype", dtype, "--json", "--out", folder / "out"]
        for name, values in zip(("q", "k", "v", "do"), stored):
            np.save(folder / f"{name}.npy", values)
            arguments += [f"--{name}", folder / f"{name}.npy"]
        for name, values in (tables or {}).items():
            np.save(folder / f"{name}.npy", values)
            arguments += ["--table", f"{name}={folder / name}.npy"]
        if len(arrays) == 4:
            arguments.append("--backward")
        outcome = self.workspace(*arguments, *options, timeout=timeout)
        self.assertEqual(outcome.code, code, str(outcome))
        results = {name: np.load(folder / "out" / f"{name}.npy") for name in OUTPUTS[: 5 if len(arrays) == 4 else 2]}
        return outcome, results, [tensors.load(s) for s in stored]

    def check_rule(self, results, inputs, dtype, **function):
        """Every result against float64 attention of the stored values."""
        expected = attention(*inputs, **function)
        for name, values in results.items():
            wrong = tensors.excess(tensors.load(values), getattr(expected, name), "fp32" if name == "lse" else dtype)
            self.assertIsNone(wrong, f"{name}: {wrong}")
        return expected

    def assert_same(self, left, right, what="", within=0.0):
        """Bitwise equal, or within an absolute difference where one is given."""
        for name in left:
            a, b = left[name], right[name]
            if within == 0:
                self.assertEqual(a.tobytes(), b.tobytes(), f"{name} differs {what}")
                continue
            a, b = tensors.load(a), tensors.load(b)
            self.assertTrue(np.array_equal(np.isfinite(a), np.isfinite(b)), f"{name} {what}")
            difference = np.abs(np.where(np.isfinite(a), a, 0) - np.where(np.isfinite(b), b, 0)).max(initial=0)
            self.assertLessEqual(difference, within, f"{name} {what}")

    def assert_finite(self, results):
        for name, values in results.items():
            self.assertTrue(np.isfinite(tensors.load(values)).all(), f"{name} is not finite")
