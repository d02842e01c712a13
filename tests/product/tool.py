"""The built `tilewright` as a test sees it: arguments in; exit code, text, JSON and files out.

Environment: TILEWRIGHT is the program, TILEWRIGHT_TEST_TARGET the target that numeric tests use (default cpu), and
TILEWRIGHT_TEST_UNDER a command that each run is started with, such as "compute-sanitizer --tool memcheck".
"""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
from dataclasses import dataclass

TARGET = os.environ.get("TILEWRIGHT_TEST_TARGET", "cpu")
UNDER = os.environ.get("TILEWRIGHT_TEST_UNDER", "").split()


def program():
    path = os.environ.get("TILEWRIGHT", "")
    if not os.access(path, os.X_OK):
        raise RuntimeError(f"TILEWRIGHT='{path}' is not a program; set it to the built tilewright")
    return path


@dataclass
class Outcome:
    arguments: list
    code: int  # negative: the signal that ended it
    stdout: str
    stderr: str

    @property
    def json(self):
        return json.loads(self.stdout)

    def __str__(self):
        return f"$ tilewright {' '.join(map(str, self.arguments))}\nexit {self.code}\n{self.stdout[-2000:]}{self.stderr[-4000:]}"


class Workspace:
    """A folder of its own with a kernel cache of its own, gone when closed."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tilewright-test-"))
        self.cache = self.folder / "cache"

    def environment(self, changes=None):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TILEWRIGHT_")}
        environment["TILEWRIGHT_CACHE_DIR"] = str(self.cache)
        for name, value in (changes or {}).items():
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = str(value)
        return environment

    def __call__(self, *arguments, env=None, timeout=120, cwd=None, prefix=()):
        """Runs the program to its end. `prefix` is a command that starts it."""
        arguments = [str(a) for a in arguments]
        done = subprocess.run([*UNDER, *prefix, program(), *arguments], capture_output=True, text=True, timeout=timeout,
                              env=self.environment(env), cwd=cwd, stdin=subprocess.DEVNULL)
        return Outcome(arguments, done.returncode, done.stdout, done.stderr)

    def start(self, *arguments, env=None, cwd=None):
        """Starts the program and returns at once."""
        return subprocess.Popen([program(), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, env=self.environment(env), cwd=cwd, stdin=subprocess.DEVNULL)

    def fresh(self, name):
        """An empty folder of that name."""
        path = self.folder / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        return path

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)
