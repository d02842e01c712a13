"""`tilewright train` and `sample` as a user meets them: a loss that falls on real text, text that comes out, Ctrl-C."""
import json
import math
import os
import pathlib
import signal
import time
import unittest

from product import tool, training

PROJECT = pathlib.Path(__file__).resolve().parents[2]


class Train(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.workspace = tool.Workspace()
        cls.addClassCleanup(cls.workspace.close)
        # This project's own prose and sources.
        files = sorted([PROJECT / "README.md", *PROJECT.glob("runtime/**/*.h"), *PROJECT.glob("runtime/**/*.cpp")])
        cls.data = cls.workspace.folder / "sources.txt"
        cls.data.write_bytes(b"\n".join(file.read_bytes() for file in files))

    def test_the_loss_falls_on_real_text_and_text_comes_out(self):
        folder = self.workspace.fresh("run")
        outcome = training.train(self.workspace, "--data", self.data, "--steps", 150, "--batch", 8, "--learning-rate", 0.003,
                                 "--checkpoints", folder, "--metrics", folder / "metrics.jsonl", "--validate-every", 50,
                                 "--log-every", 50, "--json", ranks=2)
        self.assertEqual(outcome.code, 0, str(outcome))
        result = json.loads(outcome.stdout.replace("[0] ", ""))
        lines = training.metrics(folder / "metrics.jsonl")
        self.assertEqual([line["step"] for line in lines], list(range(1, 151)))
        # Nothing is known at first: every byte is as likely as any other; the spread of initial logits adds some.
        self.assertAlmostEqual(lines[0]["loss"], math.log(256) + 0.15, delta=0.3)
        last = sum(line["loss"] for line in lines[-10:]) / 10
        self.assertLess(last, 2.8)
        validations = [line["validation_loss"] for line in training.metrics(folder / "metrics.jsonl", "validation_loss")]
        self.assertEqual(len(validations), 3)
        self.assertEqual(sorted(validations, reverse=True), validations)
        self.assertLess(abs(result["validation_loss"] - last), 0.6)
        for line in lines:
            self.assertGreater(line["tokens_per_second"], 0)
            self.assertGreater(line["memory_bytes"], 0)
            self.assertEqual(line["tokens"], 8 * 64)
        self.assertIn("step  50/150", outcome.stderr)
        self.assertIn("tokens of text are bytes", outcome.stderr)
        self.assertEqual(outcome.stderr.count("150/150"), 1)  # rank 0's alone

        sample = ("sample", "--target", "cpu", "--checkpoint", folder, "--prompt", "Status ", "--tokens", 100, "--json")
        first, again, other = (self.workspace(*sample, "--seed", seed) for seed in (1, 1, 2))
        self.assertEqual(first.code, 0, str(first))
        self.assertEqual(len(first.json["tokens"]), 100)
        self.assertEqual(first.json["tokens"], again.json["tokens"])
        self.assertNotEqual(first.json["tokens"], other.json["tokens"])
        self.assertTrue(all(0 <= token < 256 for token in first.json["tokens"]))
        # Sources are ASCII, and after 150 steps the model knows that.
        self.assertGreater(sum(token < 128 for token in first.json["tokens"]), 95)

    def test_ctrl_c_ends_all_ranks_with_a_checkpoint_that_resumes(self):
        for ranks in (1, 2):
            folder = self.workspace.fresh(f"interrupted-{ranks}")
            command = ["train", "--target", "cpu", "--data", self.data, "--steps", 100000, "--checkpoints", folder, "--log-every", 1]
            if ranks > 1:
                command = ["launch", "-n", ranks, "--", tool.program(), *command]
            job = self.workspace.start(*command, env={"TILEWRIGHT_THREADS": 1})
            while " 3/100000" not in job.stderr.readline():
                self.assertIsNone(job.poll())
            job.send_signal(signal.SIGINT)
            out, err = job.communicate(timeout=20)
            self.assertEqual(job.returncode, 130, err)
            self.assertIn("goes on", err)
            checkpoints = list(folder.glob("step-*"))
            self.assertEqual(len(checkpoints), 1)
            step = int(checkpoints[0].name.removeprefix("step-"))
            more = training.train(self.workspace, "--data", self.data, "--steps", step + 2, "--resume", folder)
            self.assertEqual(more.code, 0, str(more))
            self.assertIn(f"after step {step}", more.stderr)

    def test_a_polite_kill_ends_it_with_that_signals_code(self):
        folder = self.workspace.fresh("terminated")
        job = self.workspace.start("train", "--target", "cpu", "--data", self.data, "--steps", 100000, "--checkpoints", folder,
                                   "--log-every", 1, env={"TILEWRIGHT_THREADS": 1})
        while " 3/100000" not in job.stderr.readline():
            self.assertIsNone(job.poll())
        job.send_signal(signal.SIGTERM)
        err = job.communicate(timeout=60)[1]
        self.assertEqual(job.returncode, 128 + signal.SIGTERM, err)
        self.assertEqual(len(list(folder.glob("step-*"))), 1)

    def test_wrong_use_is_explained(self):
        for options, part in (((), "--data"),
                              (("--data", self.data, "--model", "huge"), "tiny, small, medium"),
                              (("--data", self.data, "--strategy", "zero3"), "zero1"),
                              (("--data", self.data, "--batch", 0), "batch"),
                              (("--data", self.data, "--learning-rate", "nan"), "learning-rate"),
                              (("--data", self.data, "--heads", 5), "5 heads"),
                              (("--data", self.data, "--vocabulary", 100), "256"),
                              (("--data", self.data, "--precision", "fp8"), "bf16"),
                              (("--data", self.data, "--non-finite", "ignore"), "skip"),
                              (("--data", self.data, "--target", "tpu"), "auto, cpu or cuda"),
                              (("--data", self.data, "--backward", "both"), "two_kernel"),
                              (("--data", self.data, "--resume", "/nowhere"), "/nowhere"),
                              (("--data", self.data, "--metrics", "/nowhere/m", "--steps", 1), "/nowhere/m")):
            outcome = training.train(self.workspace, *options)
            self.assertEqual(outcome.code, 2, str(outcome))
            self.assertIn(part, outcome.stderr, str(outcome))
        outcome = self.workspace("sample", "--checkpoint", "/nowhere")
        self.assertEqual(outcome.code, 2)
        self.assertIn("/nowhere", outcome.stderr)
        self.assertIn("EXAMPLES", self.workspace("train", "--help").stdout)

    def test_a_gpu_that_is_not_there_is_explained_and_not_needed(self):
        nothing = {"TILEWRIGHT_CUDA_DRIVER": "/nowhere/libcuda.so.1"}
        refused = training.train(self.workspace, "--data", self.data, "--target", "cuda", "--steps", 1, env=nothing)
        self.assertEqual(refused.code, 2, str(refused))
        for part in ("/nowhere/libcuda.so.1", "--target cpu"):
            self.assertIn(part, refused.stderr)
        for ranks in (1, 2):
            outcome = training.train(self.workspace, "--data", self.data, "--target", "auto", "--steps", 1, env=nothing, ranks=ranks)
            self.assertEqual(outcome.code, 0, str(outcome))
            self.assertIn("OpenBLAS", outcome.stderr)

    def test_a_divergence_stops_with_the_last_good_step_or_goes_on(self):
        folder = self.workspace.fresh("diverged")
        wild = ("--data", self.data, "--learning-rate", 1e12, "--warmup", 0, "--clip", 0, "--steps", 40, "--weight-decay", 0)
        stopped = training.train(self.workspace, *wild, "--checkpoints", folder)
        self.assertEqual(stopped.code, 2, str(stopped))
        self.assertIn("nothing was updated", stopped.stderr)
        self.assertTrue(list(folder.glob("step-*")))
        self.assertEqual(training.train(self.workspace, *wild, "--non-finite", "skip").code, 0)


if __name__ == "__main__":
    unittest.main()
