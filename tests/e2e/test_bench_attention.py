"""`bench attention` without a GPU: refusals, and whole runs on a driver and an NVRTC that pretend.

TILEWRIGHT_FAKE_CUDA is the library that stands in for both: every launch does nothing and takes 1.5 ms.
"""
import json
import os
import re
import signal
import time
import unittest

from errors.refusal import RefusalTest
from product import tool

FAKE = os.environ.get("TILEWRIGHT_FAKE_CUDA", "")
FAKE_ENVIRONMENT = {"TILEWRIGHT_CUDA_DRIVER": FAKE, "TILEWRIGHT_NVRTC": FAKE}

REFUSED = {
    "an unknown mask": (["--masks=diagonal"], "--masks", "diagonal", "window:N"),
    "an empty window": (["--masks=window:0"], "--masks", "window:0"),
    "dims in words": (["--dims=wide"], "--dims", "wide"),
    "a length of nothing": (["--seqs=0"], "--seqs", "0"),
    "heads that do not divide": (["--heads=3:2"], "3", "2"),
    "fp32": (["--dtype=fp32"], "--dtype", "fp32", "bf16"),
    "unknown cases": (["--cases=chairs"], "--cases", "chairs", "hopper"),
    "an unknown peer": (["--peers=fa9"], "--peers", "fa9", "cudnn"),
    "a peer twice": (["--peers=fa2,fa2"], "--peers", "fa2", "twice"),
    "no repeats": (["--repeats=0"], "repeats", "0", "1"),
    "quick with lengths": (["--quick", "--seqs=512"], "--seqs", "--quick"),
    "errors of gradients": (["--errors", "--backward"], "--errors", "--backward"),
    "an unknown schedule field": (["--schedule=foo=3"], "foo", "tile_q"),
    "a folder that is not there": (["--json=/nonexistent/x.json"], "--json", "/nonexistent"),
    "a folder for a file": (["--html=/tmp"], "--html", "/tmp", "folder"),
}


class Refusals(RefusalTest):
    def test_options(self):
        for name, (options, *needles) in REFUSED.items():
            with self.subTest(name):
                self.refused(self.workspace("bench", "attention", *options), *needles)

    def test_no_gpu(self):
        outcome = self.workspace("bench", "attention", env={"TILEWRIGHT_CUDA_DRIVER": "/nonexistent"})
        self.refused(outcome, "needs an NVIDIA GPU", "/nonexistent", "bench cpu")

    def test_help(self):
        outcome = self.workspace("bench", "attention", "--help")
        self.assertEqual(outcome.code, 0)
        for needle in ("EXAMPLES", "PROTOCOL", "--errors", "Ctrl-C"):
            self.assertIn(needle, outcome.stdout)


@unittest.skipUnless(FAKE, "TILEWRIGHT_FAKE_CUDA is not set")
class Runs(unittest.TestCase):
    def setUp(self):
        self.workspace = tool.Workspace()
        self.addCleanup(self.workspace.close)
        self.json = self.workspace.folder / "out.json"
        self.html = self.workspace.folder / "out.html"

    def bench(self, *options):
        outcome = self.workspace("bench", "attention", "--json", self.json, "--html", self.html, *options,
                                 env=FAKE_ENVIRONMENT)
        self.assertEqual(outcome.code, 0, str(outcome))
        return outcome, json.loads(self.json.read_text())

    def test_grid(self):
        outcome, found = self.bench("--dims=64,128", "--seqs=1024", "--peers=none")
        self.assertEqual([c["name"] for c in found["cells"]],
                         ["d64 none 1024", "d64 causal 1024", "d128 none 1024", "d128 causal 1024"])
        self.assertFalse(found["interrupted"])
        for cell in found["cells"]:
            self.assertEqual(cell["ms"], 1.5)
            self.assertAlmostEqual(cell["tflops"], cell["flops"] / 1.5e9)
            self.assertEqual(cell["role"], "forward")
            self.assertIn("tile_q=", cell["schedule"])
            self.assertIsNone(cell["ratio_to_best"])
        self.assertIn("d128 causal 1024", outcome.stdout)
        self.assertIn("cell 4 of 4", outcome.stderr)
        self.assertIn("no clock and power", outcome.stderr)
        self.assertTrue(self.html.read_text().startswith("<!doctype html>"))

    def test_backward(self):
        _, found = self.bench("--dims=64", "--seqs=1024", "--masks=causal", "--backward", "--peers=none")
        (cell,) = found["cells"]
        self.assertEqual(cell["role"], "backward")
        self.assertEqual(cell["flops"], 2.5 * 2 * 16 * 32 * 1024 * 1024 * 64)
        self.assertRegex(cell["schedule"], "delta: .*; fused: .*; convert: ")

    def test_peers_that_cannot_be_measured(self):
        outcome, found = self.bench("--dims=64", "--seqs=1024", "--masks=none", "--python=/nonexistent/python")
        self.assertIn("/nonexistent/python", found["peers_from"])
        self.assertIsNone(found["cells"][0]["peers"]["cudnn"]["ms"])
        self.assertIn("/nonexistent/python", outcome.stdout)

    def test_errors_of_a_kernel_that_computes_nothing(self):
        outcome, found = self.bench("--dims=64", "--seqs=256", "--masks=causal", "--errors", "--peers=none")
        errors = found["cells"][0]["errors"]
        self.assertEqual(sorted(errors), ["normal", "outliers", "sink"])
        for kind, figures in errors.items():
            self.assertFalse(figures["finite"], kind)
        self.assertIn("not finite", outcome.stdout)

    def test_cell_that_cannot_run(self):
        outcome = self.workspace("bench", "attention", "--json", self.json, "--dims=64,512", "--seqs=1024",
                                 "--masks=none", "--peers=none", env=FAKE_ENVIRONMENT)
        self.assertEqual(outcome.code, 2, str(outcome))
        good, bad = json.loads(self.json.read_text())["cells"]
        self.assertEqual(good["ms"], 1.5)
        self.assertIsNone(bad["ms"])
        self.assertIn("512", bad["why"])

    def test_interrupt_keeps_what_was_measured(self):
        process = self.workspace.start("bench", "attention", "--json", self.json, "--peers=none", "--dims=64",
                                       env=FAKE_ENVIRONMENT)
        deadline = time.monotonic() + 60
        while not self.json.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 2, stdout + stderr)
        found = json.loads(self.json.read_text())
        self.assertTrue(found["interrupted"])
        self.assertGreaterEqual(len(found["cells"]), 1)
        self.assertLess(len(found["cells"]), found["cells_planned"])
        self.assertTrue(re.search(r"interrupted after \d+ of 12 cells", stdout), stdout)


if __name__ == "__main__":
    unittest.main()
