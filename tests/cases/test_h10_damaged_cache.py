"""H10: a power cut in the middle of a cache write. Damage costs one compilation and one warning, never a run."""
import os
import random
import shutil
import subprocess
import sys
import unittest

from product import tool

PROBLEMS = (["--causal"], ["--window", "9,4"], ["--softcap", "5"])
BASE = ["run", "--target", "cpu", "--seq=20", "--dim=8", "--heads=2", "--dtype=fp32", "--verify", "--json"]

# Where an entry file keeps what: magic, version, kind, sizes, key, checksums, description.
FLIPPED = {"magic": 0, "version": 8, "kind": 12, "description size": 16, "payload size": 24, "key": 40, "payload hash": 100,
           "head hash": 165, "description": 230}


def flip(data, at):
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1:]


def damages(data, other):
    """Name -> damaged bytes."""
    rng = random.Random(len(data))
    cuts = {f"cut to {n} bytes": data[:n] for n in (0, 1, 100, len(data) // 2, len(data) - 1)}
    flips = {f"a bit of the {name}": flip(data, at) for name, at in FLIPPED.items()}
    return {**cuts, **flips, "a bit of the payload": flip(data, len(data) * 3 // 4), "the last bit": flip(data, len(data) - 1),
            "bytes added": data + b"\0", "random bytes": rng.randbytes(len(data)), "zeros": bytes(len(data)),
            "another entry": other, "text": b"not a kernel\n"}


class DamagedCache(unittest.TestCase):
    def setUp(self):
        self.workspace = tool.Workspace()
        self.addCleanup(self.workspace.close)
        self.cache = self.workspace.cache
        self.entries = []  # the file of each problem
        for problem in PROBLEMS:
            before = set(self.cache.glob("*")) if self.cache.exists() else set()
            outcome = self.workspace(*BASE, *problem)
            self.assertEqual(outcome.code, 0, str(outcome))
            (entry,) = set(self.cache.glob("*")) - before
            self.entries.append(entry)

    def run_problem(self, index):
        outcome = self.workspace(*BASE, *PROBLEMS[index], timeout=10)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertTrue(outcome.json["ok"])
        return outcome, outcome.json["cache"]["hit"]

    def recovers(self, damaged):
        """All three problems twice: only the damaged one compiles, once, and says so once."""
        for turn in range(2):
            for index, entry in enumerate(self.entries):
                outcome, hit = self.run_problem(index)
                is_bad = turn == 0 and index == damaged
                self.assertEqual(hit, not is_bad, f"{'damaged' if is_bad else 'good'} entry, turn {turn}: {outcome}")
                warnings = [line for line in outcome.stderr.splitlines() if "warning" in line]
                self.assertEqual(len(warnings), int(is_bad), str(outcome))
                if is_bad:
                    self.assertIn(entry.name, warnings[0])
        self.assertEqual(self.workspace("cache", "verify").code, 0)

    def verify_finds(self, path):
        verified = self.workspace("cache", "verify", "--json")
        self.assertNotIn(verified.code, (0, None), str(verified))
        found = verified.json["damaged"]
        self.assertEqual([d["path"] for d in found], [str(path)], str(verified))
        self.assertTrue(found[0]["what"] and found[0]["remedy"])

    def test_every_damage_of_every_entry(self):
        whole = [entry.read_bytes() for entry in self.entries]
        for index, entry in enumerate(self.entries):
            for name, data in damages(whole[index], whole[index - 1]).items():
                with self.subTest(entry=index, damage=name):
                    entry.write_bytes(data)
                    self.verify_finds(entry)
                    self.recovers(index)

    def test_a_folder_in_place_of_an_entry(self):
        for content in (False, True):
            with self.subTest(content=content):
                entry = self.entries[0]
                entry.unlink()
                entry.mkdir()
                if content:
                    (entry / "file").write_text("x")
                self.verify_finds(entry)
                for _ in range(2):
                    self.run_problem(0)  # whether it can be replaced or not, the problem is computed
                    for other in (1, 2):
                        self.assertTrue(self.run_problem(other)[1])
                self.assertEqual(self.workspace("cache", "clear").code, 0)
                shutil.rmtree(entry, ignore_errors=True)
                for index in range(3):
                    self.run_problem(index)

    def test_links_are_not_followed(self):
        entry = self.entries[0]
        elsewhere = self.workspace.folder / "elsewhere"
        shutil.move(entry, elsewhere)
        content = elsewhere.read_bytes()
        for target in (elsewhere, self.workspace.folder / "nowhere", "/dev/zero", entry):
            with self.subTest(target=str(target)):
                entry.unlink(missing_ok=True)
                entry.symlink_to(target)
                self.run_problem(0)
                self.assertTrue(self.run_problem(1)[1])
        self.assertEqual(elsewhere.read_bytes(), content)

    @unittest.skipIf(os.geteuid() != 0, "only root can give files away")
    def test_an_entry_of_somebody_else_is_never_loaded(self):
        os.chown(self.entries[0], 12345, 12345)
        outcome, hit = self.run_problem(0)
        self.assertFalse(hit, str(outcome))

    def test_an_entry_that_others_may_write_is_never_loaded(self):
        self.entries[0].chmod(0o666)
        outcome, hit = self.run_problem(0)
        self.assertFalse(hit, str(outcome))

    def test_leftovers_of_dead_processes(self):
        """A writer killed in the middle leaves a temporary file: nobody waits for it, and it goes away."""
        killed = subprocess.Popen([sys.executable, "-c", ""])
        killed.wait()
        leftovers = [self.cache / name for name in (
            f"{self.entries[0].name}.tmp", f".{self.entries[0].name}.{killed.pid}.tmp", f"{self.entries[0].name}.lock",
            "lock", ".lock", f"tmp.{killed.pid}", "index.json", "tuned.json")]
        for path in leftovers:
            path.write_bytes(b"half")
        self.recovers(None)
        self.assertEqual(self.workspace("cache", "clear").code, 0)
        for index in range(3):
            self.assertFalse(self.run_problem(index)[1])

    def test_a_writer_killed_at_any_moment(self):
        self.workspace("cache", "clear")
        for delay in (0.02, 0.1, 0.2, 0.3, 0.4, 0.6):
            process = self.workspace.start(*BASE, *PROBLEMS[0])
            try:
                process.communicate(timeout=delay)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
            outcome, _ = self.run_problem(0)
            self.assertNotIn("warning", outcome.stderr)
            self.assertEqual(self.workspace("cache", "verify").code, 0)
            self.workspace("cache", "clear")
        self.assertEqual(self.workspace("cache", "info", "--json").json["temporary_files"], 0)

    def test_clear_always_works(self):
        for path, data in zip(self.entries, (b"", b"x" * 1000, None)):
            path.unlink()
            if data is None:
                path.mkdir()
            else:
                path.write_bytes(data)
        (self.cache / "notes.txt").write_text("mine")
        self.assertEqual(self.workspace("cache", "clear").code, 0)
        self.assertEqual((self.cache / "notes.txt").read_text(), "mine")
        for index in range(3):
            self.run_problem(index)
        shutil.rmtree(self.cache)
        self.assertEqual(self.workspace("cache", "clear").code, 0)


if __name__ == "__main__":
    unittest.main()
