"""H20: a resumed training is the same training, and says what is not the same."""
import unittest

from product import tool, training


class Resume(unittest.TestCase):
    def setUp(self):
        self.workspace = tool.Workspace()
        self.addCleanup(self.workspace.close)
        self.data = training.write_text(self.workspace.folder / "text")

    def run_training(self, folder, *options, ranks=2):
        outcome = training.train(self.workspace, "--data", self.data, *training.MICRO, "--steps", 20, "--batch", 5,
                                 "--epsilon", 1e-4, "--checkpoints", folder, "--metrics", folder / "metrics.jsonl", *options,
                                 ranks=ranks)
        self.assertEqual(outcome.code, 0, str(outcome))
        return outcome

    def losses(self, folder):
        return [line["loss"] for line in training.metrics(folder / "metrics.jsonl")]

    def test_interrupted_is_uninterrupted(self):
        whole = self.workspace.fresh("whole")
        self.run_training(whole)
        for stops in ((10,), (7, 13)):
            parts = self.workspace.fresh("parts")
            resume = ()
            for stop in (*stops, 0):
                outcome = self.run_training(parts, "--stop-at", stop, *resume)
                self.assertNotIn("changed", outcome.stderr)
                resume = ("--resume", parts)
            self.assertEqual(self.losses(parts), self.losses(whole))
            self.assertEqual(training.digest(parts), training.digest(whole))

    def test_other_world_sizes(self):
        whole = self.workspace.fresh("whole")
        self.run_training(whole)
        for ranks in (1, 3):
            parts = self.workspace.fresh("parts")
            self.run_training(parts, "--stop-at", 10)
            outcome = self.run_training(parts, "--resume", parts, ranks=ranks)
            self.assertIn("ranks: 2 in the checkpoint", outcome.stderr)
            for own, expected in zip(self.losses(parts), self.losses(whole), strict=True):
                self.assertLessEqual(abs(own / expected - 1), 1e-6)
            self.assertLessEqual(training.difference(training.parameters(whole), training.parameters(parts)), 1e-6)

    def test_changed_settings_are_stated(self):
        parts = self.workspace.fresh("parts")
        self.run_training(parts, "--stop-at", 5)
        outcome = self.run_training(parts, "--resume", parts, "--steps", 30, "--learning-rate", 0.002, "--batch", 6,
                                    "--strategy", "flat", ranks=1)
        for text in ("steps: 20 in the checkpoint, 30 now", "learning_rate: 0.001 in the checkpoint, 0.002 now",
                     "batch: 5 in the checkpoint, 6 now", "strategy: zero1 in the checkpoint, flat now"):
            self.assertIn(text, outcome.stderr)
        self.assertEqual(len(self.losses(parts)), 30)

    def test_another_model_is_refused(self):
        parts = self.workspace.fresh("parts")
        self.run_training(parts, "--stop-at", 5)
        outcome = training.train(self.workspace, "--data", self.data, *training.MICRO, "--layers", 3, "--resume", parts,
                                 ranks=2)
        self.assertGreater(outcome.code, 0)
        self.assertIn("layers.2", outcome.stderr)
        outcome = training.train(self.workspace, "--data", self.data, *training.MICRO, "--heads", 1, "--resume", parts,
                                 ranks=2)
        self.assertGreater(outcome.code, 0)
        self.assertIn("found 1", outcome.stderr)


if __name__ == "__main__":
    unittest.main()
