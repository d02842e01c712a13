"""H12: one bad candidate must not end the tuning. Measuring children are killed and stopped, the disk fills up, Ctrl-C
comes in the middle, two tunings run at once: everything else is measured, and no time is spent twice."""
import json
import os
import pathlib
import signal
import sqlite3
import subprocess
import time
import unittest

from product import tool

GPU = tool.TARGET != "cpu"
# Head dim 256 with gradients: many combinations exceed limits.
PROBLEM = ["--dim=256", "--backward", "--target", tool.TARGET]
PROBLEM += ["--heads=16", "--seq=2048", "--dtype=bf16", "--causal"] if GPU else ["--heads=1", "--seq=96", "--dtype=fp32"]
# One whose candidates take longer, so that signals meet them at work.
LONGER = PROBLEM if GPU else [*PROBLEM[:-3], "--heads=2", "--seq=320", "--dtype=fp32"]
RANGE = "stages=1|2" if GPU else "tile_q=16|32|48|64,tile_kv=16|32|64"
WIDER = "stages=1|2|3" if GPU else "tile_q=16|32|48|64,tile_kv=16|32|64|96"
# What is left of a stopped child is given up after this: a GPU's candidates wait for contexts and NVRTC too.
SHORT_TIMEOUT = "--timeout=15" if GPU else "--timeout=2"
SMALL_DISK = "256m" if GPU else "1m"  # cubins go there as well
LIMITS = ["--slowest=1000", f"--most={400 if GPU else 60}", "--seconds=300", "--json"]


def children(pid):
    """Processes whose parent is `pid`: (process id, seconds of CPU time)."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append((int(entry.name), int(fields[11]) + int(fields[12])))
    return found


def busiest_child(pid):
    """The child that uses most CPU time over a moment; with nothing left to compile, the one that measures."""
    while True:
        before = dict(children(pid))
        time.sleep(0.03)
        used, child = max(((ticks - before[c], c) for c, ticks in children(pid) if c in before), default=(0, 0))
        if used or not before:
            return child


class BadCandidates(unittest.TestCase):
    def setUp(self):
        self.workspace = tool.Workspace()
        self.addCleanup(self.workspace.close)

    def start(self, *arguments, problem=PROBLEM):
        return self.workspace.start("tune", *problem, *LIMITS, *arguments)

    def finish(self, process, timeout=240):
        stdout, stderr = process.communicate(timeout=timeout)
        self.assertTrue(stdout, f"exit {process.returncode}\n{stderr[-3000:]}")
        return json.loads(stdout), stderr, process.returncode

    def tune(self, *arguments, **options):
        return self.finish(self.start(*arguments, **options))

    def rows(self):
        """Identity of each row of the store, duplicates included."""
        with sqlite3.connect(self.workspace.cache / "tuned-1.sqlite") as store:
            return store.execute("SELECT family, device, policy, schedule, outcome, recorded FROM candidates").fetchall()

    def wait_for_rows(self, process, count, seconds=120):
        until = time.time() + seconds
        while time.time() < until and process.poll() is None:
            try:
                if len(self.rows()) >= count:
                    return
            except sqlite3.Error:
                pass
            time.sleep(0.02)
        self.fail(f"no {count} rows: {process.communicate()[1][-2000:] if process.poll() is not None else 'too slow'}")

    def count(self, report, what):
        return sum(kernel[what] for problem in report["problems"] for kernel in problem["kernels"])

    def failures(self, report, outcome):
        return [f for p in report["problems"] for k in p["kernels"] for f in k["failures"] if f["outcome"] == outcome]

    def assert_whole(self, report):
        """Every candidate ended in one way, and every kernel has a winner that is no slower than the default."""
        for problem in report["problems"]:
            for kernel in problem["kernels"]:
                self.assertEqual(kernel["left"], 0, kernel)
                self.assertEqual(sum(kernel["outcomes"].values()), kernel["candidates"], kernel)
                self.assertEqual(kernel["considered"], kernel["candidates"] + sum(kernel["pruned"].values()), kernel)
                if kernel["default"]:
                    self.assertGreaterEqual(kernel["gain"], 0.99)

    def test_children_killed_and_stopped(self):
        process = self.start("--range", RANGE, SHORT_TIMEOUT, problem=LONGER)
        sent = []
        for number in [signal.SIGSEGV, signal.SIGKILL, signal.SIGSTOP] * 3:
            self.wait_for_rows(process, 2 * len(sent) + 2)  # not the one that has just replaced another
            child = busiest_child(process.pid)
            if child:
                os.kill(child, number)
                sent.append(number)
        report, stderr, code = self.finish(process)
        self.assertEqual(code, 0 if report["ok"] else 1, stderr)
        self.assert_whole(report)
        crashed, timed_out = self.failures(report, "crashed"), self.failures(report, "timed_out")
        # A signal may meet a child between two candidates: then nothing was lost.
        self.assertGreater(len(crashed), 2, stderr)
        self.assertGreater(len(timed_out), 0, stderr)
        self.assertLessEqual(len(crashed) + len(timed_out), len(sent) + 1, stderr)
        self.assertTrue(any("signal 11" in f["detail"] or "signal 9" in f["detail"] for f in crashed), crashed)
        for failure in crashed + timed_out:
            self.assertIn("tile_q", failure["schedule"])
        again, _, _ = self.tune("--range", RANGE, problem=LONGER)
        self.assertEqual(self.count(again, "measured"), 0)
        healed, _, code = self.tune("--range", RANGE, "--retry-failed", problem=LONGER)
        self.assertEqual(self.count(healed, "measured"), len(crashed) + len(timed_out))
        self.assertEqual(code, 0)
        self.assertFalse(self.failures(healed, "crashed") + self.failures(healed, "timed_out"))

    def test_interrupt_and_resume_and_a_wider_range(self):
        process = self.start("--range", RANGE)
        self.wait_for_rows(process, 6)
        process.send_signal(signal.SIGINT)
        first, stderr, _ = self.finish(process, timeout=30)
        self.assertTrue(first["interrupted"], stderr)
        kept = len(self.rows())
        self.assertEqual(self.count(first, "measured"), kept)
        self.assertGreater(self.count(first, "left"), 0)

        second, _, code = self.tune("--range", RANGE)
        self.assertEqual(code, 0)
        self.assertEqual(self.count(second, "reused"), kept)
        self.assertEqual(self.count(second, "measured"), self.count(first, "left"))
        self.assert_whole(second)
        everything = len(self.rows())
        self.assertEqual(everything, self.count(second, "candidates"))

        third, _, _ = self.tune("--range", WIDER)
        self.assertEqual(self.count(third, "reused"), everything)
        self.assertEqual(self.count(third, "measured"), self.count(third, "candidates") - everything)
        self.assertGreater(self.count(third, "measured"), 0)

        run = ["run", *PROBLEM, "--json"]
        chosen = {k["role"]: k for k in self.workspace(*run).json["kernels"]}
        for kernel in third["problems"][0]["kernels"]:
            if kernel["role"] in chosen:
                self.assertEqual(chosen[kernel["role"]]["tuning"], "exact")
                self.assertEqual(chosen[kernel["role"]]["schedule"], kernel["winner"]["schedule"])
        plain = self.workspace(*run, env={"TILEWRIGHT_TUNED": "0"}).json
        self.assertEqual({k["tuning"] for k in plain["kernels"]}, {"default"})

    def test_two_at_once(self):
        processes = [self.start("--range", RANGE) for _ in range(2)]
        reports = [self.finish(process) for process in processes]
        for report, stderr, code in reports:
            self.assertEqual(code, 0, stderr)
            self.assert_whole(report)
            self.assertNotIn("warning", stderr)
        rows = self.rows()
        self.assertEqual(len(rows), len({row[:4] for row in rows}))
        self.assertEqual(len(rows), self.count(reports[0][0], "candidates"))
        self.assertLess(sum(self.count(r, "measured") for r, _, _ in reports), 2 * len(rows))  # they share the work

    def test_a_full_disk(self):
        folder = self.workspace.fresh("small")
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK},mode=700", "none", folder], capture_output=True)
        if mounted.returncode != 0:
            self.skipTest("mounting a small file system needs privileges")
        self.addCleanup(subprocess.run, ["umount", "-l", folder])
        self.workspace.cache = folder
        process = self.start("--range", RANGE)
        self.wait_for_rows(process, 3)
        filler = folder / "filler"
        try:
            with open(filler, "wb") as file:
                while True:
                    file.write(bytes(4096))
                    file.flush()
        except OSError:
            pass
        time.sleep(5)
        filler.unlink(missing_ok=True)
        report, stderr, code = self.finish(process)
        self.assertEqual(code, 0, stderr)
        self.assert_whole(report)
        self.assertEqual(report["unsaved"], 0)
        self.assertEqual(len(self.rows()), self.count(report, "candidates"))

    def test_keys_shared_by_blocks(self):
        """Few queries over many keys: candidates split the keys, and hand each other their states."""
        report, stderr, code = self.tune("--range", "tile_q=64,stages=2,tile_kv=64|128" if GPU else "tile_q=16", problem=[
            "--target", tool.TARGET, "--heads=8:2", "--seq=1:4000", "--dim=64", "--dtype=bf16"])
        self.assertEqual(code, 0, stderr)
        self.assert_whole(report)
        self.assertFalse(self.failures(report, "crashed") + self.failures(report, "wrong_result"), stderr)
        with sqlite3.connect(self.workspace.cache / "tuned-1.sqlite") as store:
            measured = store.execute("SELECT schedule FROM candidates WHERE outcome = 'ok'").fetchall()
        self.assertTrue(any("split_kv=1," not in text for (text,) in measured), measured)

    def test_recorded_problems_and_the_page(self):
        record, page, lines = (self.workspace.folder / n for n in ("problems.jsonl", "page.html", "tuned.jsonl"))
        shape = ["--target", tool.TARGET, "--dim=64", "--dtype=bf16"]
        for length in (60, 60, 90):
            self.workspace("run", *shape, f"--seq={length}", "--causal", env={"TILEWRIGHT_RECORD": record})
        self.assertEqual(len(record.read_text().splitlines()), 2)
        tuned = self.workspace("tune", "--problems", record, "--target", tool.TARGET, "--most=4", "--report", page)
        self.assertEqual(tuned.code, 0, str(tuned))
        self.assertIn("<svg", page.read_text())
        run = ["run", *shape, "--causal", "--json"]
        self.assertEqual(self.workspace(*run, "--seq=90").json["kernels"][0]["tuning"], "exact")
        near = self.workspace(*run, "--seq=100").json["kernels"][0]
        self.assertEqual((near["tuning"], near["tuned_for"]), ("nearest", "b1 h1 q90 kv90"))
        self.assertEqual(self.workspace(*run, "--seq=5000").json["kernels"][0]["tuning"], "default")

        self.assertEqual(self.workspace("tuned", "export", lines).code, 0)
        count = len(lines.read_text().splitlines())
        self.assertEqual(self.workspace("tuned", "clear").code, 0)
        self.assertEqual(self.workspace(*run, "--seq=90").json["kernels"][0]["tuning"], "default")
        self.assertIn(f"{count} candidates", self.workspace("tuned", "import", lines).stdout)
        self.assertEqual(self.workspace(*run, "--seq=90").json["kernels"][0]["tuning"], "exact")

        (self.workspace.cache / "tuned-1.sqlite").write_bytes(b"no database" * 100)
        damaged = self.workspace(*run, "--seq=90")
        self.assertEqual(damaged.code, 0, str(damaged))
        self.assertEqual(damaged.json["kernels"][0]["tuning"], "default")
        self.assertEqual(damaged.stderr.count("warning"), 1, damaged.stderr)


if __name__ == "__main__":
    unittest.main()
