"""`bench ddp` and `bench zero`: every mode once, with the calls, bytes and memory that its plan has."""
import json
import unittest

from product import tool


class BenchTraining(unittest.TestCase):
    def setUp(self):
        self.workspace = tool.Workspace()
        self.addCleanup(self.workspace.close)

    def rows(self, which, ranks):
        outcome = self.workspace("bench", which, "--model", "tiny", "--ranks", ranks, "--batch", 1, "--steps", 2, "--warmup", 1,
                                 "--context", 16, "--json")
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertEqual(outcome.json["ranks"], ranks)
        self.assertEqual(outcome.json["parameters"], 1386816)
        return {row["mode"]: row for row in outcome.json["rows"]}

    def test_ddp(self):
        rows = self.rows("ddp", 2)
        self.assertEqual(len(rows), 9)
        self.assertEqual(rows["naive"]["calls"], 22)  # 21 parameters, and the tokens
        self.assertEqual(rows["flat"]["calls"], 2)
        self.assertEqual(rows["no communication"]["sent_bytes"], 0)
        for mode, row in rows.items():
            self.assertGreater(row["step_ms"], 0)
            if mode != "no communication":  # each rank sends half of all gradients twice, or a little padding more
                self.assertAlmostEqual(row["sent_bytes"] / (1386816 * 4), 1, delta=0.01)

    def test_zero(self):
        rows = self.rows("zero", 3)
        state = rows["bucketed"]["memory_bytes"]["optimizer state"]
        self.assertAlmostEqual(state / (1386816 * 8), 1, delta=0.001)
        self.assertAlmostEqual(rows["zero1"]["memory_bytes"]["optimizer state"] / state, 1 / 3, delta=0.001)

    def test_table_and_refusals(self):
        table = self.workspace("bench", "ddp", "--ranks", 1, "--batch", 1, "--steps", 1, "--warmup", 0, "--context", 16)
        self.assertEqual(table.code, 0, str(table))
        for text in ("to naive", "930.3", "bucketed 1000 MB"):
            self.assertIn(text, table.stdout)
        for backend, part in (("mpi", "gloo or nccl"), ("nccl", "/nowhere/libcuda.so.1")):
            refused = self.workspace("bench", "zero", "--backend", backend,
                                     env={"TILEWRIGHT_CUDA_DRIVER": "/nowhere/libcuda.so.1"})
            self.assertEqual(refused.code, 2)
            self.assertIn(part, refused.stderr)
            self.assertIn("--backend gloo", refused.stderr)


if __name__ == "__main__":
    unittest.main()
