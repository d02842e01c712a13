"""Every default kernel compiles for the architecture that TILEWRIGHT_TEST_ARCHITECTURE names, without a spilled register and
without a finding of ptxas.

The product of head dims, element types, masks, scores and head groups is sampled so that every pair of an element type and a
head dim is met, and every pair of a mask and a score, each with all of its kernels: both ways to compute gradients where the
type has two. TILEWRIGHT_TEST_FULL=1 takes the whole product (hours).
"""
import itertools
import os
import unittest

import numpy as np

from product import tool

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120")
ARCHITECTURE = os.environ.get("TILEWRIGHT_TEST_ARCHITECTURE", "sm_90a")
FULL = os.environ.get("TILEWRIGHT_TEST_FULL") == "1"
DIMS = ("64", "128", "96", "192", "256", "192:128", "8", "40")
DTYPES = ("bf16", "fp16", "fp32")
MASKS = {
    "everything": [],
    "causal": ["--causal"],
    "window": ["--window=256,0"],
    "irregular": ["--mask", "(q * 7 + k * 3) % 5 < 2 && k <= q"],
    "documents": ["--mask", "doc[q] == doc[k] || k < 4"],
}
SCORES = {
    "plain": [],
    "softcap": ["--softcap=30"],
    "slopes": ["--score", "s - slope[h] * abs(q - k)"],
    "both": ["--softcap=30", "--score", "s - slope[h] * abs(q - k)"],
}
# Lengths decide tile sizes where they are short.
LENGTHS = ("2000", "1:2000", "48")
# Three bf16 planes of wide fp32 gradients do not fit 99 KiB of shared memory: refused, saying so.
TOO_WIDE = {(a, dim, "fp32") for a in ("sm_86", "sm_89", "sm_120") for dim in ("192", "256", "192:128")}
ROLES = {"two_kernel": ["forward", "delta", "dkv", "dq"], "fused": ["forward", "delta", "fused", "convert"]}


def sample():
    """(dim, dtype, mask, score, length, group) of the problems to compile."""
    functions = list(itertools.product(MASKS, SCORES))
    shapes = list(itertools.product(DIMS, DTYPES))
    if FULL:
        return [(*s, *f, n, g) for s in shapes for f in functions for n in LENGTHS for g in (1, 4)]
    # Steps of 7 meet all functions in turn, with another head dim on each architecture.
    start = 3 * ARCHITECTURES.index(ARCHITECTURE)
    problems = [(*shape, *functions[(start + 7 * i) % len(functions)], LENGTHS[i % 7 // 5 * (1 + i % 2)], (1, 4)[i // 2 % 2])
                for i, shape in enumerate(shapes)]
    # What most people use, whatever the sample met.
    problems += [(dim, "bf16", mask, "plain", "2000", 1) for dim in ("64", "128") for mask in ("everything", "causal")]
    return problems


class DefaultKernels(unittest.TestCase):
    def setUp(self):
        self.workspace = tool.Workspace()
        self.addCleanup(self.workspace.close)
        probe = self.workspace("doctor")
        if not any(line.startswith("+ NVRTC") for line in probe.stdout.splitlines()):
            self.skipTest("NVRTC missing")
        self.tables = []
        for name, table in (("doc", np.arange(2000, dtype="i4") // 300), ("slope", 2.0 ** -np.arange(1, 9, dtype="f4"))):
            path = self.workspace.folder / f"{name}.npy"
            np.save(path, table)
            self.tables.append((name, path))
        self.slowest = (0, "")
        self.kernels = set()

    def compiles(self, problem, strategy):
        dim, dtype, mask, score, length, group = problem
        function = MASKS[mask] + SCORES[score]
        tables = [f"--table={name}={path}" for name, path in self.tables if any(f"{name}[" in part for part in function)]
        outcome = self.workspace("compile", "--target", ARCHITECTURE, f"--heads=8:{8 // group}", f"--seq={length}",
                                 f"--dim={dim}", f"--dtype={dtype}", *function, *tables, "--backward",
                                 f"--schedule=backward={strategy}", "--json", timeout=600)
        if (ARCHITECTURE, dim, dtype) in TOO_WIDE:
            self.assertEqual(outcome.code, 2)
            self.assertIn("shared memory", str(outcome))
            return
        self.assertEqual(outcome.code, 0, str(outcome)[:1500])
        report = outcome.json
        splits = report["kernels"][0]["schedule"]["split_kv"] > 1
        self.assertEqual([k["role"] for k in report["kernels"] if k["role"] != "merge" or not splits], ROLES[strategy])
        self.assertEqual("merge" in [k["role"] for k in report["kernels"]], splits)
        bad = []
        for kernel in report["kernels"]:
            self.assertGreater(kernel["registers"], 0)
            self.assertGreater(kernel["code_bytes"], 0)
            self.kernels.add(kernel["symbol"])
            self.slowest = max(self.slowest, (kernel["generate_ms"] + kernel["compile_ms"], kernel["symbol"]))
            if kernel["spill_bytes"] or kernel["problems"]:
                fields = ",".join(f"{name}={kernel['schedule'][name]}" for name in
                                  ("tile_q", "tile_kv", "stages", "warps", "column_warps", "blocks_per_sm"))
                bad.append(f"{kernel['role']} {fields}: {kernel['spill_bytes']} bytes of spills, {kernel['registers']} "
                           f"registers, {kernel['problems']}")
        self.assertFalse(bad, "\n".join(bad))

    def test_compile(self):
        problems = sample()
        for problem in problems:
            for strategy in ("two_kernel",) if problem[1] == "fp32" else ROLES:
                with self.subTest(architecture=ARCHITECTURE, problem=problem, strategy=strategy):
                    self.compiles(problem, strategy)
        print(f"{ARCHITECTURE}: {len(problems)} problems, {len(self.kernels)} kernels; slowest {self.slowest[0]:.0f} ms, "
              f"{self.slowest[1]}")


if __name__ == "__main__":
    unittest.main()
