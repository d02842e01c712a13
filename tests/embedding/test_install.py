"""What `cmake --install` gives to hosts outside the tree: each way to find it builds and runs a small application."""
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

BUILD = Path(os.environ["TILEWRIGHT_BUILD"])
SOURCE = Path(__file__).resolve().parents[2]
EXAMPLES = SOURCE / "runtime" / "examples"
FAST = ["-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_C_FLAGS=-Werror", "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror"]


def run(*command, **keywords):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=1500, **keywords)
    if result.returncode:
        raise AssertionError(f"{' '.join(map(str, command))}: exit code {result.returncode}\n{result.stdout}"
                             f"{result.stderr}")
    return result.stdout


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="tilewright-test-")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.root = Path(cls.folder.name)
        cls.prefix = cls.root / "prefix"
        run("cmake", "--install", BUILD, "--prefix", cls.prefix)
        cls.libraries = next(cls.prefix.glob("**/libtilewright.so")).parent
        cls.environment = {**os.environ, "LD_LIBRARY_PATH": str(cls.libraries), "PKG_CONFIG_PATH":
                           str(cls.libraries / "pkgconfig"), "TILEWRIGHT_CACHE_DIR": str(cls.root / "cache"),
                           "TILEWRIGHT_CUDA_DRIVER": "/nonexistent"}

    def test_find_package(self):
        run("cmake", "-S", EXAMPLES, "-B", self.root / "examples", *FAST, f"-DCMAKE_PREFIX_PATH={self.prefix}")
        run("cmake", "--build", self.root / "examples")
        self.assertIn("lse[0]", run(self.root / "examples" / "attention", env=self.environment))
        self.assertIn("as it should be", run(self.root / "examples" / "serving", env=self.environment))

    def test_pkg_config_and_the_c_standard(self):
        flags = run("pkg-config", "--cflags", "--libs", "tilewright", env=self.environment).split()
        run("cc", "-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-D_ISOC11_SOURCE", EXAMPLES / "attention.c",
            *flags, "-o", self.root / "attention")
        self.assertIn("lse[0]", run(self.root / "attention", env=self.environment))
        self.assertIn("0.1", run("pkg-config", "--modversion", "tilewright-runtime", env=self.environment))

    def test_the_header_alone(self):
        include = f"-I{self.prefix / 'include'}"
        for compiler, language, standard in (("cc", "c", "c99"), ("cc", "c", "c11"), ("c++", "c++", "c++17")):
            run(compiler, f"-std={standard}", "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only", include,
                "-x", language, "-",
                input="#include <tilewright.h>\nint main(void) { return (int)sizeof(tw_problem) == 0; }\n")

    def test_only_what_is_public_is_visible(self):
        for name in ("libtilewright.so", "libtilewright-runtime.so"):
            library = self.libraries / name
            symbols = [line.split(maxsplit=2)[2] for line in
                       run("nm", "-DC", "--defined-only", library).splitlines() if len(line.split(maxsplit=2)) == 3]
            allowed = ("tw_", "tilewright::", "TILEWRIGHT_", "vtable for tilewright::", "typeinfo for tilewright::",
                       "typeinfo name for tilewright::")
            self.assertGreater(len(symbols), 50)
            self.assertEqual([symbol for symbol in symbols if not symbol.startswith(allowed)], [])
            self.assertTrue(all("@@TILEWRIGHT_0.1" in symbol for symbol in symbols if symbol.startswith("tw_")))
            self.assertEqual([symbol for symbol in symbols if "JsonObject" in symbol or "Emitter" in symbol], [])
            needed = run("objdump", "-p", library)
            self.assertIn(f"SONAME               {name}.0.1", needed)
            self.assertNotIn("libLLVM", needed)
            self.assertNotIn("libcuda", needed)

    def test_the_runtime_alone_needs_a_cache(self):
        """The same program, on the library without a compiler, runs what the other one has compiled."""
        program = self.root / "runtime-only"
        flags = run("pkg-config", "--cflags", "--libs", "tilewright-runtime", env=self.environment).split()
        source = ('#include <stdio.h>\n#include <tilewright.h>\nint main(void) { tw_context *c; tw_attention *a;\n'
                  'tw_context_create(NULL, &c); printf("%d %d ", tw_has_compiler(), tw_version());\n'
                  'if (tw_attention_prepare_json(c, "{}", NULL, &a)) puts(tw_last_error()->message);\n'
                  'tw_context_destroy(c); return 0; }\n')
        run("cc", "-x", "c", "-", "-o", program, *flags, input=source)
        self.assertRegex(run(program, env=self.environment), "0 100 .*carries no compiler")


class Subdirectory(unittest.TestCase):
    def test_add_subdirectory(self):
        """In a folder that stays, so that only the first run compiles the runtime."""
        folder = BUILD / "embedding"
        folder.mkdir(exist_ok=True)
        (folder / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(Host C CXX)\n"
            f"add_subdirectory({SOURCE} tilewright EXCLUDE_FROM_ALL)\n"
            "add_executable(host host.cpp)\ntarget_link_libraries(host PRIVATE Tilewright::runtime)\n")
        (folder / "host.cpp").write_text(
            "#include <tilewright.h>\n#include <tilewright/Attention.h>\nusing namespace tilewright;\n"
            "int main() { return choosePlans({}, Target::hostCpu()) && tw_version() == 100 ? 0 : 1; }\n")
        run("cmake", "-S", folder, "-B", folder / "build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug",
            "-DTILEWRIGHT_BUILD_COMPILER=OFF", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
        run("cmake", "--build", folder / "build")
        run(folder / "build" / "host")
        self.assertFalse((folder / "build" / "tilewright" / "distributed").exists())


if __name__ == "__main__":
    unittest.main()
