"""What the machine lacks or refuses: drivers, compilers, folders, space."""
import ctypes
import os
import pathlib
import shutil
import subprocess
import unittest

from errors.refusal import RefusalTest
from product import tool

SMALL = ("run", "--target", "cpu", "--seq=10", "--dim=8", "--json")


def has_driver():
    try:
        ctypes.CDLL("libcuda.so.1")
        return True
    except OSError:
        return False


class Stderr(RefusalTest):
    """A log that goes nowhere ends nothing."""

    def test_closed_or_full(self):
        for stderr in ("2>&-", "2>/dev/full"):
            for arguments, code in ((SMALL, 0), (("run", "--seq=-5"), 2), (("doctor",), 0)):
                with self.subTest(stderr=stderr, arguments=arguments):
                    command = ["sh", "-c", f'"$@" {stderr}', "sh", tool.program(), *arguments]
                    ended = subprocess.run(command, stdout=subprocess.DEVNULL, env=self.workspace.environment(), timeout=120)
                    self.assertEqual(ended.returncode, code)

    def test_help_that_is_not_written(self):
        for arguments in ("--help", "--version", "run --help"):
            command = ["sh", "-c", f'"$1" {arguments} >/dev/full', "sh", tool.program()]
            self.assertEqual(subprocess.run(command, stderr=subprocess.DEVNULL, timeout=60).returncode, 2, arguments)


class Libraries(RefusalTest):
    @unittest.skipIf(has_driver(), "the machine has a CUDA driver")
    def test_no_driver(self):
        self.refused(self.workspace("run", "--target=sm_90a", "--out", self.out), "driver", "libcuda", "cpu")

    def test_driver_that_does_not_open(self):
        self.refused(self.workspace("run", "--target=sm_90a", "--out", self.out, env={"TILEWRIGHT_CUDA_DRIVER": "/nonexistent"}),
                     "/nonexistent", "TILEWRIGHT_CUDA_DRIVER")

    def test_nvrtc_that_is_not_there(self):
        emit = self.folder / "emit"
        self.refused(self.workspace("compile", "--target=sm_90a", "--emit", emit, env={"TILEWRIGHT_NVRTC": "/nonexistent"}),
                     "NVRTC", "/nonexistent", "TILEWRIGHT_NVRTC")
        self.assertFalse(emit.exists() and any(emit.iterdir()))

    def test_nvrtc_that_is_no_library(self):
        text = self.folder / "libnvrtc.so"
        text.write_text("not a library")
        self.refused(self.workspace("compile", "--target=sm_90a", env={"TILEWRIGHT_NVRTC": text}), "NVRTC", str(text))

    def test_nvrtc_that_is_another_library(self):
        library = next(iter(sorted(pathlib.Path("/lib/x86_64-linux-gnu").glob("libm.so.6"))), None)
        if not library:
            self.skipTest("no libm.so.6 to pass for NVRTC")
        self.refused(self.workspace("compile", "--target=sm_90a", env={"TILEWRIGHT_NVRTC": library}), "NVRTC", str(library))

    def test_cpu_target_needs_none_of_them(self):
        outcome = self.workspace(*SMALL, env={"TILEWRIGHT_NVRTC": "/nonexistent", "TILEWRIGHT_CUDA_DRIVER": "/nonexistent"})
        self.assertEqual(outcome.code, 0, str(outcome))


class Environment(RefusalTest):
    def test_values(self):
        for name, value in (("CACHE_MAX_BYTES", "lots"), ("CACHE_MAX_BYTES", "-1"), ("THREADS", "0"), ("THREADS", "many"),
                            ("NO_COMPILE", "perhaps")):
            with self.subTest(name=name, value=value):
                self.refused(self.workspace(*SMALL, "--out", self.out, env={f"TILEWRIGHT_{name}": value}),
                             f"TILEWRIGHT_{name}", value, "expected")

    def test_forbidden_compilation(self):
        self.refused(self.workspace(*SMALL, "--out", self.out, env={"TILEWRIGHT_NO_COMPILE": 1}), "TILEWRIGHT_NO_COMPILE",
                     "bundle")

    def test_misspelt_variable_is_named(self):
        outcome = self.workspace(*SMALL, env={"TILEWRIGHT_THRAEDS": 3})
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertIn("TILEWRIGHT_THRAEDS", outcome.stderr)


class CacheFolder(RefusalTest):
    """A cache that cannot be used costs a warning and a compilation, never the result."""

    def works_with_a_warning(self, needle, env=None, prefix=()):
        outcome = self.workspace(*SMALL, "--verify", env=env, prefix=prefix)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertTrue(outcome.json["ok"])
        warnings = [line for line in outcome.stderr.splitlines() if line.startswith("tilewright: warning")]
        self.assertEqual(len(warnings), 1, str(outcome))
        self.assertRegex(warnings[0], needle)

    def test_a_file_for_a_folder(self):
        path = self.file("cache", 3)
        self.works_with_a_warning(str(path), {"TILEWRIGHT_CACHE_DIR": path})

    def test_a_folder_that_cannot_be_made(self):
        self.works_with_a_warning("/proc/nowhere", {"TILEWRIGHT_CACHE_DIR": "/proc/nowhere"})

    def test_a_dangling_link(self):
        (self.folder / "link").symlink_to(self.folder / "gone" / "away")
        self.works_with_a_warning("link", {"TILEWRIGHT_CACHE_DIR": self.folder / "link"})

    @unittest.skipIf(os.geteuid() != 0, "only root can give folders away")
    def test_a_folder_of_somebody_else(self):
        path = self.workspace.fresh("foreign")
        os.chown(path, 12345, 12345)
        self.works_with_a_warning("12345", {"TILEWRIGHT_CACHE_DIR": path})
        self.assertFalse(list(path.iterdir()))

    def test_a_folder_that_others_may_write(self):
        path = self.workspace.fresh("open")
        path.chmod(0o777)
        self.works_with_a_warning(str(path), {"TILEWRIGHT_CACHE_DIR": path})

    @unittest.skipIf(os.geteuid() != 0 or not shutil.which("setpriv"), "needs root and setpriv to act as another user")
    def test_a_folder_without_permission(self):
        self.folder.chmod(0o755)
        path = self.workspace.fresh("closed")
        path.chmod(0o500)
        os.chown(path, 65534, 65534)
        reachable = self.reachable_program()
        outcome = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", reachable, *SMALL],
                                 env=self.workspace.environment({"TILEWRIGHT_CACHE_DIR": path}), capture_output=True,
                                 text=True, timeout=120, cwd="/")
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        self.assertIn(str(path), outcome.stderr)

    @unittest.skipIf(os.geteuid() != 0 or not shutil.which("setpriv"), "needs root and setpriv to act as another user")
    def test_results_folder_without_permission(self):
        self.folder.chmod(0o755)
        closed = self.workspace.fresh("closed")
        closed.chmod(0o755)
        for out in (closed, closed / "below"):
            done = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", self.reachable_program(), *SMALL,
                                   "--out", str(out)], env=self.workspace.environment({"TILEWRIGHT_CACHE_DIR": None, "HOME": "/"}),
                                  capture_output=True, text=True, timeout=120, cwd="/")
            self.refused(tool.Outcome(["run", "--out", str(out)], done.returncode, done.stdout,
                                      done.stderr.replace("tilewright: warning", "warning")), str(out), "ermission")
            self.assertFalse(list(closed.iterdir()))

    def reachable_program(self):
        """A copy that any user may run: the build folder may be private."""
        copy = self.folder / "tilewright"
        if not copy.exists():
            shutil.copy(tool.program(), copy)
            copy.chmod(0o755)
        return copy


class Space(RefusalTest):
    """A file system of 64 KiB that fills up."""

    def setUp(self):
        super().setUp()
        self.small = self.workspace.fresh("small")
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", str(self.small)], capture_output=True)
        if made.returncode != 0:
            self.skipTest("no permission to mount a small file system")
        self.addCleanup(subprocess.run, ["umount", str(self.small)], check=True)

    def test_results(self):
        results = self.small / "results"
        self.refused(self.workspace("run", "--target=cpu", "--seq=512", "--heads=8", "--dim=64", "--out", results), str(results),
                     "[Nn]o space|disk is full")
        self.assertFalse(results.exists() and list(results.iterdir()))

    def test_results_keep_what_was_there(self):
        first = self.workspace("run", "--target=cpu", "--seq=20", "--dim=8", "--out", self.small / "results")
        self.assertEqual(first.code, 0, str(first))
        before = {p.name: p.read_bytes() for p in (self.small / "results").iterdir()}
        outcome = self.workspace("run", "--target=cpu", "--seq=512", "--heads=8", "--dim=64", "--out", self.small / "results")
        self.assertEqual(outcome.code, 2, str(outcome))
        self.assertEqual({p.name: p.read_bytes() for p in (self.small / "results").iterdir()}, before)

    def test_cache(self):
        (self.small / "filler").write_bytes(b"x" * 60000)
        outcome = self.workspace(*SMALL, "--backward", "--verify", env={"TILEWRIGHT_CACHE_DIR": self.small / "cache"})
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertTrue(outcome.json["ok"])
        self.assertRegex(outcome.stderr, "[Nn]o space|disk is full")
        cache = self.small / "cache"
        if cache.exists():
            verified = self.workspace("cache", "verify", "--dir", cache)
            self.assertEqual(verified.code, 0, str(verified))
            self.assertEqual(self.workspace("cache", "info", "--dir", cache, "--json").json["temporary_files"], 0)

    def test_emitted_files(self):
        outcome = self.workspace("compile", "--target=cpu", "--backward", "--emit", self.small / "emit")
        self.assertEqual(outcome.code, 2, str(outcome))
        self.assertRegex(outcome.stderr, "[Nn]o space|disk is full")


class Places(RefusalTest):
    def test_results_where_a_file_is(self):
        path = self.file("taken", 3)
        before = path.read_bytes()
        for out in (path, path / "below"):
            outcome = self.workspace(*SMALL, "--out", out)
            self.refused(outcome, str(out))
            self.assertEqual(path.read_bytes(), before)

    def test_results_in_no_place(self):
        self.refused(self.workspace(*SMALL, "--out", "/proc/nowhere"), "/proc/nowhere")

    def test_emitted_files_in_no_place(self):
        self.refused(self.workspace("compile", "--target=cpu", "--emit", "/proc/nowhere"), "/proc/nowhere")

    def test_output_that_is_closed(self):
        """JSON into a full device is a failure, not a success."""
        with open("/dev/full", "w") as full:
            done = subprocess.run([tool.program(), *SMALL], stdout=full, stderr=subprocess.PIPE, text=True,
                                  env=self.workspace.environment(), timeout=120)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(done.stderr, "[Nn]o space|disk is full|write")


if __name__ == "__main__":
    unittest.main()
