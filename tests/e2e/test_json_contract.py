"""What a script may rely on: the keys and types of `run --json` and `compile --json`, one strict object on stdout."""
import json
import re
import unittest

from product import tool

NUMBER = (int, float)
HASH = re.compile(r"^[0-9a-f]{64}$")
SCHEDULE = {"tile_q": int, "tile_kv": int, "stages": int, "warps": int, "order": str}
KERNEL = {"role": str, "symbol": str, "plan": str, "schedule": dict, "tuning": str}
RUN = {"problem": dict, "schedule": dict, "target": str, "plan": str, "tiles": dict, "ms": NUMBER, "tflops": NUMBER,
       "cache": dict, "ok": bool, "kernels": list, "score_matrix_bytes": NUMBER, "rows_that_see_nothing": int}
ERROR = {"max_abs": NUMBER, "relative_to_naive": NUMBER}
COMPILE = {"registers": int, "shared_bytes": int, "spill_bytes": int, "compile_ms": NUMBER, "paths": list, "target": str,
           "problem": dict, "kernels": list, "plan": str, "schedule": dict}


def strict(text):
    """JSON as the standard has it: no NaN or Infinity."""

    def refuse(word):
        raise ValueError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


class JsonContract(unittest.TestCase):
    def setUp(self):
        self.workspace = tool.Workspace()
        self.addCleanup(self.workspace.close)

    def has(self, value, keys, where):
        for key, kinds in keys.items():
            self.assertIn(key, value, where)
            kinds = kinds if isinstance(kinds, tuple) else (kinds,)
            self.assertIn(type(value[key]), kinds, f"{where}.{key} is {value[key]!r}")

    def object_of(self, *arguments):
        outcome = self.workspace(*arguments)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertEqual(outcome.stdout.count("\n"), 1, "one line: " + outcome.stdout[:200])
        return strict(outcome.stdout)

    def check_run(self, report):
        self.has(report, RUN, "run")
        self.has(report["schedule"], SCHEDULE, "schedule")
        self.has(report["tiles"], {"empty": int, "full": int, "partial": int}, "tiles")
        self.has(report["cache"], {"hit": bool, "compile_ms": NUMBER}, "cache")
        self.assertRegex(report["plan"], HASH)
        for kernel in report["kernels"]:
            self.has(kernel, {**KERNEL, "ms": NUMBER, "cache": dict}, "kernel")
            self.assertRegex(kernel["plan"], HASH)

    def test_run(self):
        line = ["run", "--target", tool.TARGET, "--batch=2", "--heads=4:2", "--seq=70:90", "--dim=16:24", "--causal", "--json"]
        report = self.object_of(*line)
        self.check_run(report)
        self.assertNotIn("errors", report)
        problem = {"batch": 2, "heads_q": 4, "heads_kv": 2, "seq_q": 70, "seq_kv": 90, "dim_qk": 16, "dim_v": 24,
                   "dtype": "bf16", "layout": "bshd", "causal": True}
        self.assertEqual({k: report["problem"][k] for k in problem}, problem)
        self.assertEqual(report["score_matrix_bytes"], 2 * 4 * 70 * 90 * 2)

        again = self.object_of(*line)
        self.assertTrue(again["cache"]["hit"])
        self.assertEqual(again["cache"]["compile_ms"], 0)
        self.assertEqual(again["plan"], report["plan"])

    def test_verified_run(self):
        forward = self.object_of("run", "--target", tool.TARGET, "--seq=50", "--dim=16", "--verify", "--json")
        self.assertEqual(sorted(forward["errors"]), ["lse", "o"])
        backward = self.object_of("run", "--target", tool.TARGET, "--seq=50", "--dim=16", "--verify", "--backward", "--json")
        self.check_run(backward)
        self.assertEqual(sorted(backward["errors"]), ["dk", "dq", "dv", "lse", "o"])
        gradients = ["dkv", "dq"] if tool.TARGET == "cpu" else ["fused", "convert"]
        self.assertEqual([k["role"] for k in backward["kernels"]], ["forward", "delta"] + gradients)
        for name, errors in backward["errors"].items():
            self.has(errors, ERROR, name)
        self.assertIs(backward["ok"], True)

    def test_empty_problems(self):
        for seq in ("0:5", "5:0", "0:0"):
            for more in ([], ["--backward", "--verify"]):
                with self.subTest(seq=seq, more=more):
                    self.check_run(self.object_of("run", "--target", tool.TARGET, f"--seq={seq}", "--dim=16", "--json", *more))

    def test_tiles_add_up(self):
        for seq, mask in (((300, 200), "k <= q"), ((64, 64), "true"), ((100, 400), "k % 3 == 0 && k < q"), ((1, 1), "k < 1")):
            report = self.object_of("run", "--target", tool.TARGET, "--heads=3", f"--seq={seq[0]}:{seq[1]}", "--mask", mask,
                                    "--schedule=tile_q=64,tile_kv=128", "--json")
            rows, columns = -(-seq[0] // 64), -(-seq[1] // 128)
            self.assertEqual(sum(report["tiles"].values()), 3 * rows * columns, report["tiles"])
            self.assertEqual({report["schedule"][f] for f in ("tile_q", "tile_kv")}, {64, 128})

    def test_compile(self):
        emit = self.workspace.folder / "emit"
        report = self.object_of("compile", "--target=cpu", "--seq=50", "--backward", "--emit", emit, "--json")
        self.has(report, COMPILE, "compile")
        self.assertEqual(report["target"], "cpu")
        self.assertEqual([k["role"] for k in report["kernels"]], ["forward", "delta", "dkv", "dq"])
        for kernel in report["kernels"]:
            self.has(kernel, {**KERNEL, "registers": int, "shared_bytes": int, "spill_bytes": int, "paths": list}, "kernel")
            self.assertTrue(kernel["paths"])
            for path in kernel["paths"]:
                with open(path, "rb") as file:
                    self.assertTrue(file.read(1), f"{path} is empty")
        written = {str(p) for p in emit.iterdir()}
        self.assertEqual({p for k in report["kernels"] for p in k["paths"]}, written)

    def test_random_tensors_depend_on_the_seed_alone(self):
        results = []
        for seed, name in ((1, "a"), (1, "b"), (2, "c")):
            out = self.workspace.folder / name
            self.object_of("run", "--target", tool.TARGET, "--seq=40", "--dim=16", f"--seed={seed}", "--out", out, "--json")
            results.append((out / "o.npy").read_bytes())
        self.assertEqual(results[0], results[1])
        self.assertNotEqual(results[0], results[2])

    def test_failures_print_nothing_on_stdout(self):
        outcome = self.workspace("run", "--target=cpu", "--seq=-1", "--json")
        self.assertEqual((outcome.code, outcome.stdout), (2, ""))


if __name__ == "__main__":
    unittest.main()
