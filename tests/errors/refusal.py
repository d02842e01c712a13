"""The rule that every refusal keeps, as an assertion."""
import re
import shutil
import unittest

import numpy as np

from product import tool


class RefusalTest(unittest.TestCase):
    """A test case with a workspace and small good tensors to spoil."""

    def setUp(self):
        self.workspace = tool.Workspace()
        self.addCleanup(self.workspace.close)
        self.folder = self.workspace.folder
        self.out = self.folder / "out"

    def file(self, name, *shape, dtype="f4"):
        path = self.folder / f"{name}.npy"
        np.save(path, np.ones(shape, dtype))
        return path

    def tensors(self, q=(1, 5, 4, 8), k=(1, 7, 2, 8), v=(1, 7, 2, 8), dtype="f4"):
        """Options of good files, in which a test replaces one."""
        return {"q": self.file("q", *q, dtype=dtype), "k": self.file("k", *k, dtype=dtype),
                "v": self.file("v", *v, dtype=dtype)}

    def run_files(self, files, *more, **how):
        options = [part for name, path in files.items() for part in (f"--{name}", path)]
        return self.workspace("run", "--target", "cpu", "--dtype", "fp32", *options, "--out", self.out, "--json", *more, **how)

    def refused(self, outcome, *needles):
        """Exit code 2, nothing on stdout, one message that holds every needle (regular expressions), no file in --out."""
        text = str(outcome)
        if outcome.code == 0:  # its results are no evidence against the next refusal
            shutil.rmtree(self.out, ignore_errors=True)
        self.assertEqual(outcome.code, 2, text)
        self.assertEqual(outcome.stdout, "", text)
        self.assertEqual(len(re.findall(r"^tilewright: (?!warning)", outcome.stderr, re.M)), 1, "not one message: " + text)
        message = outcome.stderr
        for sign in ("terminate called", "what():", "Assertion", "LLVM ERROR", "Stack dump", "bad_alloc"):
            self.assertNotIn(sign, message, text)
        for needle in needles:
            self.assertRegex(message, needle, text)
        left = sorted(self.out.rglob("*")) if self.out.is_dir() else []
        shutil.rmtree(self.out, ignore_errors=True)
        self.assertFalse(left, f"left behind in --out: {left}")
