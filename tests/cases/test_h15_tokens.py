"""H15: tokens outside the vocabulary and other bad data: clean errors on all ranks before step 1, never a crash."""
import unittest

import numpy as np

from product import tool, training


class Tokens(unittest.TestCase):
    def setUp(self):
        self.workspace = tool.Workspace()
        self.addCleanup(self.workspace.close)
        self.folder = self.workspace.fresh("data")
        self.tokens = np.random.default_rng(0).integers(0, 10000, 3000)

    def refused(self, path, *parts, options=()):
        checkpoints = self.workspace.fresh("checkpoints")
        outcome = training.train(self.workspace, "--data", path, "--checkpoints", checkpoints, "--steps", 3, *options,
                                 ranks=2)
        self.assertGreater(outcome.code, 0, str(outcome))
        for rank in (0, 1):
            lines = "\n".join(line for line in outcome.stderr.splitlines() if line.startswith(f"[{rank}]"))
            for part in parts:
                self.assertIn(str(part), lines, str(outcome))
            self.assertNotIn("step 1", lines)
        self.assertEqual(list(checkpoints.glob("step-*")), [])

    def test_good_tokens_train(self):
        path = training.write_tokens(self.folder / "good.bin", self.tokens)
        outcome = training.train(self.workspace, "--data", path, "--steps", 2, "--batch", 2, "--json", ranks=2)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertIn('"vocabulary":10000', outcome.stdout)

    def test_token_beyond_the_vocabulary_in_the_training_part(self):
        self.tokens[1234] = 10000
        path = training.write_tokens(self.folder / "tokens.bin", self.tokens)
        self.refused(path, path, "token 1234", "byte 2468", "10000")

    def test_token_beyond_the_vocabulary_in_the_validation_part(self):
        self.tokens[2990] = 65535
        path = training.write_tokens(self.folder / "tokens.bin", self.tokens)
        self.refused(path, "token 2990", "65535", "vocabulary of 10000")

    def test_odd_number_of_bytes(self):
        path = self.folder / "odd.bin"
        path.write_bytes(b"\1" * 4001)
        self.refused(path, path, "4001 bytes")

    def test_shorter_than_a_context(self):
        path = training.write_tokens(self.folder / "short.bin", self.tokens[:60])
        self.refused(path, path, "at least 65")

    def test_empty_missing_and_a_folder(self):
        path = self.folder / "empty.bin"
        path.write_bytes(b"")
        self.refused(path, path, "empty")
        self.refused(self.folder / "missing.bin", "missing.bin", "No such file")
        self.refused(self.folder, "expected a file")

    def test_text_taken_for_tokens(self):
        path = training.write_text(self.folder / "text")
        self.refused(path, path, "outside the vocabulary", "--format text", options=("--format", "uint16"))


if __name__ == "__main__":
    unittest.main()
