"""Tensors and tables from files that are missing, damaged, or do not fit."""
import os
import socket
import unittest

import numpy as np

from errors.refusal import RefusalTest


def npy(header, data=b"\0" * 640, magic=b"\x93NUMPY\x01\x00"):
    """A .npy file with any text for a header."""
    text = header.encode().ljust(117) + b"\n"
    return magic + len(text).to_bytes(2, "little") + text + data


def described(descr="'<f4'", order="False", shape="(1, 5, 4, 8)"):
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"


class TensorFiles(RefusalTest):
    def refused_as_q(self, content, *needles):
        files = self.tensors()
        files["q"].write_bytes(content)
        self.refused(self.run_files(files), r"q\.npy", *needles)

    def test_missing(self):
        self.refused(self.run_files({**self.tensors(), "k": self.folder / "none.npy"}), r"none\.npy", "No such file")

    def test_every_truncation(self):
        whole = self.tensors()["q"].read_bytes()
        for length in (0, 1, 5, 6, 7, 9, 10, 11, 60, 127, 128, 129, len(whole) // 2, len(whole) - 1):
            with self.subTest(length=length):
                self.refused_as_q(whole[:length], "expected|truncated")

    def test_longer_than_its_header_says(self):
        self.refused_as_q(self.tensors()["q"].read_bytes() + b"\0\0\0\0", "640", "4 more")

    def test_garbage(self):
        self.refused_as_q(np.random.default_rng(1).bytes(500), "not a .npy file")
        self.refused_as_q(b"q = 1, 2, 3\n" * 20, "not a .npy file")

    def test_bad_headers(self):
        for header in ("", "{", "not a dictionary", described(shape="(1, -5, 4, 8)"), described(shape="(1, 5, 4, x)"),
                       described(shape="7"), described(order="Perhaps"), described(descr="'<q9'"), described(descr="7"),
                       "{'descr': '<f4', 'shape': (1, 5, 4, 8), }", "{'descr': '<f4', 'fortran_order': False, }",
                       described()[:-3], described(shape="(" * 50), described(shape="(1, 5, 4, 8, 'x')"),
                       described(shape="(1, 5, 4, 99999999999999999999)"), "\0" * 40, "\xff" * 30):
            with self.subTest(header=header):
                self.refused_as_q(npy(header))

    def test_header_length_beyond_the_file(self):
        self.refused_as_q(b"\x93NUMPY\x01\x00\xff\xff" + b" " * 100)
        self.refused_as_q(b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 100)

    def test_unknown_format_version(self):
        self.refused_as_q(npy(described(), magic=b"\x93NUMPY\x09\x00"), "format 9.0", "1.0")

    def test_shape_that_overflows(self):
        self.refused_as_q(npy(described(shape="(4294967296, 4294967296, 4294967296, 8)")), "4294967296")
        self.refused_as_q(npy(described(shape="(65536, 65536, 65536, 65536)")), "65536")

    def test_wrong_element_types(self):
        for dtype in ("f8", "i4", "i8", "u1", "?", "c8", "f2", "u2", "U3"):
            with self.subTest(dtype=dtype):
                self.refused(self.run_files({**self.tensors(), "q": self.file("bad", 1, 5, 4, 8, dtype=dtype)}),
                             r"bad\.npy", "expected", "float32")

    def test_python_objects(self):
        np.save(self.folder / "o.npy", np.array([{}], object))
        self.refused(self.run_files({**self.tensors(), "q": self.folder / "o.npy"}), r"o\.npy", "expected")

    def test_bf16_asked_fp32_found(self):
        files = self.tensors()
        options = [x for name, path in files.items() for x in (f"--{name}", path)]
        self.refused(self.workspace("run", "--target", "cpu", "--dtype", "bf16", *options, "--out", self.out), r"q\.npy",
                     "bf16", "float32")

    def test_a_folder_for_a_file(self):
        self.refused(self.run_files({**self.tensors(), "v": self.folder}), "folder")

    def test_things_that_are_no_files(self):
        os.mkfifo(self.folder / "pipe")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.folder / "socket"))
            for name in (self.folder / "pipe", self.folder / "socket", "/dev/null", "/dev/zero"):
                with self.subTest(name=name):
                    self.refused(self.run_files({**self.tensors(), "v": name}, timeout=20), str(name))

    def test_wrong_number_of_dimensions(self):
        for shape in ((), (5,), (5, 4, 8), (1, 1, 5, 4, 8)):
            with self.subTest(shape=shape):
                self.refused(self.run_files({**self.tensors(), "q": self.file("bad", *shape)}), r"bad\.npy", "4 dim", "found")

    def test_shapes_that_disagree(self):
        for name, shape in (("k", (2, 7, 2, 8)), ("k", (1, 7, 2, 16)), ("v", (1, 9, 2, 8)), ("v", (1, 7, 4, 8)),
                            ("v", (3, 7, 2, 8)), ("do", (1, 5, 2, 8)), ("do", (1, 6, 4, 8)), ("do", (1, 5, 4, 16))):
            with self.subTest(name=name, shape=shape):
                files = {**self.tensors(), "do": self.file("do", 1, 5, 4, 8)}
                files[name] = self.file("bad", *shape)
                self.refused(self.run_files(files, "--backward"), r"bad\.npy", "expected", str(shape[1]), "found")

    def test_heads_of_files_that_do_not_divide(self):
        files = self.tensors(q=(1, 5, 4, 8), k=(1, 7, 3, 8), v=(1, 7, 3, 8))
        self.refused(self.run_files(files), "4", "3", "multiple")

    def test_shape_options_that_contradict_the_files(self):
        for option, value in (("--heads", "8"), ("--seq", "99"), ("--dim", "16"), ("--batch", "2")):
            with self.subTest(option=option):
                self.refused(self.run_files(self.tensors(), option, value), option, value, "expected")

    def test_files_that_are_left_out(self):
        files = self.tensors()
        self.refused(self.run_files({"q": files["q"]}), "--q", "--k", "--v")
        self.refused(self.run_files(files, "--backward"), "--do")
        self.refused(self.workspace("run", "--target", "cpu", "--do", files["q"], "--out", self.out), "--do")

    def test_right_files_pass(self):
        """The tests above fail for the reason they name: the same files unspoiled are computed."""
        outcome = self.run_files({**self.tensors(), "do": self.file("do", 1, 5, 4, 8)}, "--backward")
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertEqual(sorted(p.name for p in self.out.iterdir()), ["dk.npy", "dq.npy", "dv.npy", "lse.npy", "o.npy"])


class TableFiles(RefusalTest):
    def with_table(self, *shape, dtype="i4", mask="doc[q] == doc[k]", name="doc"):
        return self.workspace("run", "--target", "cpu", "--seq", "10", "--batch", "2", "--mask", mask, "--table",
                              f"{name}={self.file('t', *shape, dtype=dtype)}", "--out", self.out)

    def test_missing(self):
        self.refused(self.workspace("run", "--target", "cpu", "--seq", "10", "--mask", "doc[q] == 1", "--out", self.out),
                     "doc", "--table")
        self.refused(self.workspace("run", "--target", "cpu", "--seq", "10", "--mask", "doc[q] == 1", "--table",
                                    "doc=none.npy", "--out", self.out), r"none\.npy")

    def test_wrong_shapes(self):
        for shape in ((3,), (9,), (11,), (0,), (2, 10), (10, 1, 1)):
            with self.subTest(shape=shape):
                self.refused(self.with_table(*shape), "doc|t.npy", "expected", "found")
        self.refused(self.with_table(10, mask="doc[b, q] == 1"), "doc", "expected", "found")
        self.refused(self.with_table(3, 10, mask="doc[b, q] == 1"), "doc", "expected", "found")
        self.refused(self.with_table(3, mask="k < doc[b]"), "doc", "2", "3")

    def test_wrong_element_types(self):
        for dtype in ("u1", "?", "c8", "U2"):
            with self.subTest(dtype=dtype):
                self.refused(self.with_table(10, dtype=dtype), r"t\.npy|doc", "expected")

    def test_integers_beyond_32_bits(self):
        np.save(self.folder / "t.npy", np.full(10, 2**40, "i8"))
        self.refused(self.workspace("run", "--target", "cpu", "--seq", "10", "--mask", "doc[q] == doc[k]", "--table",
                                    f"doc={self.folder}/t.npy", "--out", self.out), "doc|t.npy", str(2**40))

    def test_options_that_make_no_sense(self):
        table = self.file("t", 10, dtype="i4")
        base = ("run", "--target", "cpu", "--seq", "10", "--out", self.out)
        self.refused(self.workspace(*base, "--causal", "--table", f"doc={table}"), "doc")  # nothing reads it
        self.refused(self.workspace(*base, "--mask", "doc[q] == 1", "--table", "doc"), "NAME=FILE")
        self.refused(self.workspace(*base, "--mask", "doc[q] == 1", "--table", "=x"), "NAME=FILE")
        self.refused(self.workspace(*base, "--mask", "doc[q] == 1", "--table", f"doc={table}", "--table", f"doc={table}"),
                     "doc", "twice")


if __name__ == "__main__":
    unittest.main()
