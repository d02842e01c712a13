"""H11: two dozen cold starts at once, on one cache."""
import json
import pathlib
import random
import subprocess
import time
import unittest

from product import tool

COUNT = 24
RUN = ["run", "--target", "cpu", "--seq=20", "--dim=8", "--dtype=fp32", "--verify", "--json"]


def different(index):
    return ["--window", f"{index},3"]


class ColdStarts(unittest.TestCase):
    def setUp(self):
        self.workspace = tool.Workspace()
        self.addCleanup(self.workspace.close)
        self.home = self.workspace.fresh("home")
        self.work = self.workspace.fresh("work")

    def start(self, line):
        return self.workspace.start(*line, env={"HOME": self.home, "TMPDIR": self.work}, cwd=self.work)

    def all_at_once(self, lines, meanwhile=None, killed=()):
        """Starts all, ends all, and returns each one's (code, stdout, stderr). `meanwhile` runs until the last is done."""
        processes = [self.start(line) for line in lines]
        for index in killed:
            time.sleep(0.05)
            processes[index].kill()
        while meanwhile and any(p.poll() is None for p in processes):
            meanwhile()
        ended = []
        for process in processes:
            stdout, stderr = process.communicate(timeout=120)
            ended.append((process.returncode, stdout, stderr))
        return ended

    def all_verified(self, ended, but=()):
        for index, (code, stdout, stderr) in enumerate(ended):
            if index in but:
                continue
            self.assertEqual(code, 0, stderr)
            self.assertTrue(json.loads(stdout)["ok"])
            self.assertNotIn("warning", stderr)

    def cache_holds(self, entries):
        files = [p for p in self.workspace.cache.rglob("*") if p.is_file()]
        self.assertEqual(len(files), entries, [p.name for p in files])
        self.assertTrue(all(p.suffix == ".twk" for p in files), files)
        self.assertEqual(self.workspace("cache", "verify").code, 0)

    def nothing_outside_the_cache(self):
        self.assertFalse(list(self.home.rglob("*")))
        self.assertFalse(list(self.work.rglob("*")))

    def test_all_the_same(self):
        self.all_verified(self.all_at_once([RUN] * COUNT))
        self.cache_holds(1)
        self.nothing_outside_the_cache()

    def test_all_different(self):
        self.all_verified(self.all_at_once([RUN + different(i) for i in range(COUNT)]))
        self.cache_holds(COUNT)
        self.nothing_outside_the_cache()

    def test_six_problems_in_random_order(self):
        rng = random.Random(3)
        script = "for window in {}; do {} || exit $?; done"
        processes = []
        for _ in range(COUNT):
            order = " ".join(map(str, rng.sample(range(6), 6)))
            line = " ".join([tool.program(), *RUN, "--window $window,3"])
            processes.append(subprocess.Popen(["sh", "-c", script.format(order, line)], stdout=subprocess.PIPE,
                                              stderr=subprocess.PIPE, text=True, cwd=self.work,
                                              env=self.workspace.environment({"HOME": self.home})))
        for process in processes:
            stdout, stderr = process.communicate(timeout=300)
            self.assertEqual(process.returncode, 0, stderr)
            self.assertEqual([json.loads(line)["ok"] for line in stdout.splitlines()], [True] * 6)
            self.assertEqual(stderr, "")
        self.cache_holds(6)
        self.nothing_outside_the_cache()

    def test_while_the_cache_is_cleared_pruned_and_verified(self):
        turns = []

        def disturb():
            command = (["clear"], ["prune", "--max-bytes=1"], ["verify"])[len(turns) % 3]
            outcome = self.workspace("cache", *command)
            turns.append(outcome.code)
            self.assertEqual(outcome.code, 0, str(outcome))

        self.all_verified(self.all_at_once([RUN + different(i % 3) for i in range(COUNT)], meanwhile=disturb))
        self.assertTrue(turns)
        self.assertEqual(self.workspace("cache", "verify").code, 0)

    def test_with_members_killed(self):
        killed = (1, 5, 6, 11, 17, 23)
        self.all_verified(self.all_at_once([RUN] * COUNT, killed=killed), but=killed)
        self.all_verified(self.all_at_once([RUN] * 2))
        self.assertEqual(self.workspace("cache", "verify").code, 0)
        self.workspace("cache", "clear")
        self.assertFalse([p for p in self.workspace.cache.rglob("*") if p.is_file()])

    def test_compiling_for_a_gpu(self):
        probe = self.workspace("compile", "--target=sm_90a", "--dim=64", "--json")
        if "NVRTC" in probe.stderr and probe.code == 2 and "load:" in probe.stderr:
            self.skipTest("NVRTC missing")
        self.assertEqual(probe.code, 0, str(probe))
        self.workspace("cache", "clear")
        line = ["compile", "--target=sm_90a", "--dim=64", "--json"]
        for lines, entries in (([line] * COUNT, 1), ([line + different(i % 6) for i in range(COUNT)], 7)):
            for code, stdout, stderr in self.all_at_once(lines):
                self.assertEqual(code, 0, stderr)
            files = [p for p in self.workspace.cache.rglob("*") if p.is_file()]
            self.assertEqual(len(files), entries, [p.name for p in files])
        self.nothing_outside_the_cache()
        self.assertFalse([p for p in pathlib.Path(self.workspace.folder).rglob("*.pch")])


class InvisibleWinner(unittest.TestCase):
    """A network file system on which a renamed file is not seen at once: a library loaded before the program makes every
    opening of an entry fail for a while."""

    SOURCE = r"""
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <errno.h>
    #include <fcntl.h>
    #include <stdarg.h>
    #include <string.h>
    static int hidden(const char *path, int flags) {
      size_t n = path ? strlen(path) : 0;
      return n > 4 && !strcmp(path + n - 4, ".twk") && (flags & O_ACCMODE) == O_RDONLY;
    }
    #define OPENAT(name)                                                                       \
      int name(int folder, const char *path, int flags, ...) {                                 \
        va_list more; va_start(more, flags); int mode = va_arg(more, int); va_end(more);       \
        if (hidden(path, flags)) { errno = ENOENT; return -1; }                                \
        return ((int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, #name))(folder, path, flags, mode); }
    #define OPEN(name)                                                                         \
      int name(const char *path, int flags, ...) {                                             \
        va_list more; va_start(more, flags); int mode = va_arg(more, int); va_end(more);       \
        if (hidden(path, flags)) { errno = ENOENT; return -1; }                                \
        return ((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name))(path, flags, mode); }
    OPENAT(openat) OPENAT(openat64) OPEN(open) OPEN(open64)
    """

    def test_losers_keep_their_own_bytes(self):
        workspace = tool.Workspace()
        self.addCleanup(workspace.close)
        source, library = workspace.folder / "hide.c", workspace.folder / "hide.so"
        source.write_text(self.SOURCE)
        built = subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], capture_output=True, text=True)
        if built.returncode != 0:
            self.skipTest("no C compiler: " + built.stderr[:200])
        processes = [workspace.start(*RUN, env={"LD_PRELOAD": library}) for _ in range(12)]
        for process in processes:
            stdout, stderr = process.communicate(timeout=120)
            self.assertEqual(process.returncode, 0, stderr)
            self.assertTrue(json.loads(stdout)["ok"])
            self.assertFalse(json.loads(stdout)["cache"]["hit"])  # the entry was hidden from it indeed
        self.assertEqual(workspace("cache", "verify").code, 0)
        self.assertTrue(workspace(*RUN).json["cache"]["hit"])


if __name__ == "__main__":
    unittest.main()
