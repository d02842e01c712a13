"""H17: the same training under every strategy, world size, accumulation and bucket size."""
import unittest

from product import tool, training

STRATEGIES = ("naive", "flat", "overlap", "bucketed", "zero1-broadcast", "zero1")
TOLERANCE = 1e-6


class Strategies(unittest.TestCase):
    def setUp(self):
        self.workspace = tool.Workspace()
        self.addCleanup(self.workspace.close)
        self.data = training.write_text(self.workspace.folder / "text")
        self.runs = 0

    def run_training(self, *options, ranks=1):
        """Metrics of every rank, and the final parameters."""
        self.runs += 1
        folder = self.workspace.fresh(f"run-{self.runs}")
        outcome = training.train(self.workspace, "--data", self.data, *training.MICRO, "--steps", 20, "--epsilon", 1e-4,
                                 "--checkpoints", folder, "--metrics", folder / "{rank}.jsonl", "--validation-share", 0,
                                 *options, ranks=ranks)
        self.assertEqual(outcome.code, 0, str(outcome))
        return [training.metrics(folder / f"{rank}.jsonl") for rank in range(ranks)], folder

    def compare(self, plain, other, what):
        (plain_metrics,), plain_folder = plain
        metrics, folder = other
        for own in metrics:
            self.assertEqual(len(own), 20, what)
            for expected, line in zip(plain_metrics, own):
                for key in ("loss", "gradient_norm"):
                    self.assertLessEqual(abs(line[key] / expected[key] - 1), TOLERANCE, (what, line["step"], key))
                self.assertEqual(line["tokens"], expected["tokens"])
        self.assertLessEqual(training.difference(training.parameters(plain_folder), training.parameters(folder)),
                             TOLERANCE, what)

    def test_ranks_and_strategies(self):
        for batch, clip in ((21, 0.1), (6, 0)):
            options = ("--batch", batch, "--clip", clip)
            plain = self.run_training(*options, "--strategy", "naive")
            for ranks in (2, 5):
                for strategy in STRATEGIES:
                    own = self.run_training(*options, "--strategy", strategy, ranks=ranks)
                    self.compare(plain, own, (batch, ranks, strategy))

    def test_accumulation_and_buckets(self):
        options = ("--batch", 21, "--clip", 0.1)
        plain = self.run_training(*options)
        for accumulation, bucket, ranks, strategy in ((4, "1K", 3, "zero1"), (4, "100K", 2, "bucketed"), (1, "1M", 7, "zero1")):
            own = self.run_training(*options, "--accumulation", accumulation, "--bucket", bucket, "--strategy", strategy,
                                    ranks=ranks)
            self.compare(plain, own, (accumulation, bucket, ranks, strategy))

    def test_zero1_has_the_bits_of_bucketed(self):
        digests = {training.digest(self.run_training("--batch", 6, "--strategy", strategy, ranks=2)[1])
                   for strategy in ("bucketed", "zero1")}
        self.assertEqual(len(digests), 1)


if __name__ == "__main__":
    unittest.main()
