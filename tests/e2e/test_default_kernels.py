"""Every default kernel compiles for the architecture that TILEWRIGHT_TEST_ARCHITECTURE names.

No spills and no findings of ptxas are accepted where the defaults were measured: 16-bit kernels of the dims in STRICT_DIMS on
STRICT_ARCHITECTURE, everything visible or causal. Elsewhere spills are listed for the reader, as are compile times.
"""
import os
import unittest

from product import tool

ARCHITECTURE = os.environ.get("TILEWRIGHT_TEST_ARCHITECTURE", "sm_90a")
DIMS = ("64", "128", "256", "192:128", "72:40")
STRICT_ARCHITECTURE, STRICT_DIMS, STRICT_FUNCTIONS = "sm_90a", ("64", "128"), ("everything", "causal")
# Three bf16 planes of wide fp32 gradients do not fit 99 KiB of shared memory: refused, saying so.
TOO_WIDE = {(a, dim, "fp32") for a in ("sm_86", "sm_89", "sm_120") for dim in ("256", "192:128")}
FUNCTIONS = {
    "everything": [],
    "causal": ["--causal"],
    "irregular mask": ["--mask", "(q * 7 + k * 3) % 5 < 2 || doc[q] == doc[k]"],
    "score": ["--causal", "--softcap=30", "--score", "s - slope[h] * abs(q - k)"],
}


class DefaultKernels(unittest.TestCase):
    def setUp(self):
        self.workspace = tool.Workspace()
        self.addCleanup(self.workspace.close)
        probe = self.workspace("doctor")
        if not any(line.startswith("+ NVRTC") for line in probe.stdout.splitlines()):
            self.skipTest("NVRTC missing")
        self.slowest = (0, "")

    def compiles(self, dim, dtype, name):
        outcome = self.workspace("compile", "--target", ARCHITECTURE, "--heads=8:2", f"--dim={dim}", f"--dtype={dtype}",
                                 *FUNCTIONS[name], "--backward", "--json", timeout=300)
        if (ARCHITECTURE, dim, dtype) in TOO_WIDE:
            self.assertEqual(outcome.code, 2)
            self.assertIn("shared memory", str(outcome))
            return
        self.assertEqual(outcome.code, 0, str(outcome)[:1500])
        report = outcome.json
        self.assertIn([k["role"] for k in report["kernels"]],
                      (["forward", "delta", "dkv", "dq"], ["forward", "delta", "fused", "convert"]))
        bad = []
        for kernel in report["kernels"]:
            self.assertGreater(kernel["registers"], 0)
            self.assertGreater(kernel["code_bytes"], 0)
            self.slowest = max(self.slowest, (kernel["generate_ms"] + kernel["compile_ms"], kernel["symbol"]))
            if kernel["spill_bytes"] or kernel["problems"]:
                bad.append(f"{kernel['symbol']}: {kernel['spill_bytes']} bytes of spills, {kernel['registers']} registers, "
                           f"{kernel['problems']}")
        if ARCHITECTURE == STRICT_ARCHITECTURE and dim in STRICT_DIMS and dtype != "fp32" and name in STRICT_FUNCTIONS:
            self.assertFalse(bad, "\n".join(bad))
        for line in bad:
            print(f"spills: {ARCHITECTURE} {name}: {line}")

    def test_compile(self):
        # Masks and scores enter the kernels of every element type alike; bf16 sees them all.
        wanted = [(dim, "bf16", name) for dim in DIMS for name in FUNCTIONS]
        wanted += [(dim, dtype, "causal") for dim in DIMS for dtype in ("fp16", "fp32")]
        for dim, dtype, name in wanted:
            with self.subTest(architecture=ARCHITECTURE, dim=dim, dtype=dtype, function=name):
                self.compiles(dim, dtype, name)
        print(f"{ARCHITECTURE}: {len(wanted)} problems of four kernels; slowest {self.slowest[0]:.0f} ms, {self.slowest[1]}")


if __name__ == "__main__":
    unittest.main()
