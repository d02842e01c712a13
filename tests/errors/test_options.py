"""Options that state no problem, or an impossible one."""
import tempfile
import unittest

from errors.refusal import RefusalTest

_files = []


def holding(text):
    """A file that lives as long as the module."""
    _files.append(tempfile.NamedTemporaryFile("w"))
    _files[-1].write(text)
    _files[-1].flush()
    return _files[-1].name


EMPTY, OPEN_QUOTATION, OWN_TARGET = (holding(text) for text in ("", "--mask 'k <= q\n", "--seq 64 --target sm_80\n"))

# Options after `run --target cpu --seq 10 --dim 8` and what the message must name. Each has what was given and what is
# accepted; expressions show the column.
REFUSED = {
    "heads that do not divide": (["--heads=33:2"], "33", "2"),
    "three heads on two": (["--heads=3:2"], "3", "2"),
    "no kv heads": (["--heads=8:0"], "8", "0"),
    "no query heads": (["--heads=0:1"], "0", "1"),
    "more kv heads than heads": (["--heads=4:8"], "4", "8"),
    "negative heads": (["--heads=-2"], "-2", "1 to"),
    "heads in words": (["--heads=many"], "--heads", "many", "expected"),
    "three head counts": (["--heads=4:2:1"], "--heads", "4:2:1"),
    "negative batch": (["--batch=-1"], "batch", "-1", "0 to"),
    "batch in words": (["--batch=two"], "batch", "two"),
    "batch beyond 64 bits": (["--batch=99999999999999999999"], "batch", "0 to"),
    "negative seed": (["--seed=-1"], "seed", "'-1'", "whole number from 0 to 9223372036854775807"),
    "unknown data": (["--data=weird"], "weird", "normal"),
    "unknown layout": (["--layout=bsdh"], "bsdh", "bshd", "bhsd"),
    "seed beyond 64 bits": (["--seed=18446744073709551616"], "seed", "18446744073709551616", "0 to 9223372036854775807"),
    "seed in words": (["--seed=lucky"], "seed", "'lucky'", "whole number"),
    "mask of an unset variable": (["--mask="], "mask", "empty"),
    "score of an unset variable": (["--score="], "score", "empty"),
    "window of an unset variable": (["--window="], "window", "empty"),
    "results in an unset folder": (["--out="], "out", "empty"),
    "tensor of an unset variable": (["--q="], "--q", "empty"),
    "negative rows to verify": (["--verify", "--verify-rows=-4"], "verify-rows", "-4"),
    "window of one number": (["--window=5"], "window", "L,R", "'5'", "-1 for no bound"),
    "window in words": (["--window=a,b"], "window", "'a,b'", "-1 for no bound"),
    "window of three": (["--window=1,2,3"], "window", "'1,2,3'"),
    "window left below -1": (["--window=-3,0"], "window", "-3", "-1 for unbounded"),
    "window right below -1": (["--window=5,-2"], "window", "-2", "-1 for unbounded"),
    "window beyond 64 bits": (["--window=99999999999999999999,0"], "window", "99999999999999999999"),
    "negative softcap": (["--softcap=-1"], "softcap", "-1"),
    "softcap nan": (["--softcap=nan"], "softcap", "nan"),
    "softcap inf": (["--softcap=inf"], "softcap", "inf"),
    "softcap in words": (["--softcap=big"], "softcap", "big"),
    "scale nan": (["--scale=nan"], "scale", "nan", "finite"),
    "scale inf": (["--scale=-inf"], "scale", "inf", "finite"),
    "scale in words": (["--scale=abc"], "scale", "abc"),
    "mask cut off": (["--mask=k <= "], "mask", "column 6"),
    "mask with a wrong operator": (["--mask=k <= q &&& q"], "mask", "column 10", "&&"),
    "mask with a strange character": (["--mask=k @ q"], "mask", "column 3", "@"),
    "mask with an unknown name": (["--mask=foo < 3"], "mask", "foo", "column 1", "q k sq sk h b"),
    "mask that is a number": (["--mask=k + q"], "mask", "boolean"),
    "mask of the score": (["--mask=s > 0"], "mask", "score"),
    "mask with an open parenthesis": (["--mask=k < (q"], "mask", "'\\)'", "column 7"),
    "mask with a chain": (["--mask=0 < k < q"], "mask", "column"),
    "mask modulo zero": (["--mask=k % 0 == 1"], "mask", "zero", "column 5"),
    "mask floor-divided by zero": (["--mask=k // 0 == 1"], "mask", "zero"),
    "mask modulo a variable": (["--mask=k % q == 1"], "mask", "literal|number|constant", "column"),
    "mask with a huge integer": (["--mask=k < 99999999999999999999999"], "9223372036854775807", "column 5"),
    "mask that overflows": (["--mask=k * q * 10000000 < 5"], "mask", "64-bit"),
    "mask with too few arguments": (["--mask=min(k) < 1"], "mask", "min", "2", "1"),
    "mask with an unknown function": (["--mask=sin(k) < 1"], "mask", "sin"),
    "mask of a table by a sum": (["--mask=doc[q+1] == 1"], "mask", "column"),
    "mask of a table, batch last": (["--mask=doc[k, b] == 1"], "mask", "doc\\[k, b\\]", "column"),
    "mask nested too deep": (["--mask=" + "(" * 2000 + "k" + ")" * 2000 + " < q"], "mask", "deep|nest"),
    "mask too long": (["--mask=" + "k < q && " * 3000 + "k < q"], "mask", "4096"),
    "mask that never sees": (["--mask=k < 0"], "mask", "no query sees any key", "k < 0"),
    "mask beyond the keys": (["--mask=k >= sk"], "mask", "no query sees any key", "10 x 10"),
    "mask that the window leaves nothing of": (["--causal", "--mask=k > q"], "mask", "no query sees any key"),
    "score cut off": (["--score=s +"], "score", "column 4"),
    "score that is a condition": (["--score=k <= q"], "score", "number", "boolean"),
    "score with an unknown name": (["--score=t * 2"], "score", "'t'", "column 1"),
    "score with a strange character": (["--score=s $ 2"], "score", "column 3"),
    "schedule with an impossible tile": (["--schedule=tile_q=4096"], "tile_q", "4096", "16 to"),
    "schedule with a tile of nothing": (["--schedule=tile_kv=0"], "tile_kv", "0", "16"),
    "schedule with an uneven tile": (["--schedule=tile_kv=72"], "tile_kv", "72", "multiple"),
    "schedule with odd warps": (["--schedule=warps=3"], "warps", "3", "1, 2, 4"),
    "schedule with many stages": (["--schedule=stages=99"], "stages", "99", "1 to"),
    "schedule with an unknown field": (["--schedule=foo=3"], "foo", "tile_q"),
    "schedule for an unknown kernel": (["--schedule=foo.tile_q=64"], "foo", "forward"),
    "schedule without a value": (["--schedule=tile_q"], "tile_q", "="),
    "schedule in words": (["--schedule=tile_q=wide"], "tile_q", "wide"),
    "schedule that repeats itself": (["--schedule=tile_q=64,tile_q=32"], "tile_q", "twice"),
    "schedule with an unknown order": (["--schedule=order=sideways"], "order", "sideways", "plain"),
    "schedule with a negative threshold": (["--schedule=rescale_threshold=-1"], "rescale_threshold", "-1"),
    "an unknown flag": (["--cuasal"], "--cuasal", "--help"),
    "a stray word": (["fast"], "fast"),
}

# Whole command lines.
LINES = {
    "negative length": (["run", "--target", "cpu", "--seq=-5"], "seq", "-5", "0 to"),
    "negative kv length": (["run", "--target", "cpu", "--seq=5:-1"], "seq", "-1", "0 to"),
    "length as a float": (["run", "--target", "cpu", "--seq=1e3"], "--seq", "1e3"),
    "length beyond 32 bits": (["run", "--target", "cpu", "--seq=4000000000"], "seq", "4000000000", "268435456"),
    "more than memory": (["run", "--target", "cpu", "--batch=100000", "--heads=60000", "--seq=200000"], "needed", "available"),
    "more than 64 bits": (["run", "--target", "cpu", "--batch=2000000000", "--heads=60000", "--seq=268435456", "--dim=512"],
                          "2000000000", "64-bit"),
    "head dim zero": (["run", "--target", "cpu", "--dim=0"], "dim", "1 to 512", "0"),
    "head dim too large": (["run", "--target", "cpu", "--dim=513"], "dim", "513", "512"),
    "v head dim negative": (["run", "--target", "cpu", "--dim=64:-8"], "dim_v", "-8"),
    "head dim beyond 64 bits": (["run", "--target", "cpu", "--dim=99999999999999999999"], "--dim", "99999999999999999999"),
    "emitted files in an unset folder": (["compile", "--target", "cpu", "--emit="], "emit", "empty"),
    "unknown dtype": (["run", "--target", "cpu", "--dtype=fp8"], "fp8", "bf16, fp16 or fp32"),
    "unknown target": (["run", "--target=sm_70"], "sm_70", "accepted"),
    "an option without its value": (["run", "--seq"], "--seq"),
    "an option twice": (["run", "--seq=5", "--seq=6"], "--seq"),
    "head dim no multiple of 8 on CUDA": (["compile", "--target=sm_90a", "--dim=60"], "60", "multiples of 8", "64"),
    "v head dim no multiple of 8 on CUDA": (["compile", "--target=sm_80", "--dim=64:20"], "dim_v", "20", "multiples of 8"),
    "head dim above 256 on CUDA": (["compile", "--target=sm_90a", "--dim=264"], "264", "256"),
    "tiles beyond shared memory": (["compile", "--target=sm_90a", "--dim=256", "--schedule=tile_kv=256,stages=4"],
                                   "shared memory", "tile_kv=256", "232448"),
    "warps that do not fit the tile": (["compile", "--target=sm_80", "--schedule=tile_q=16,warps=16"], "warps|tile_q", "16"),
    "gradient tiles beyond the limit": (["compile", "--target=sm_80", "--backward", "--schedule=dkv.tile_q=1024"],
                                        "dkv", "1024", "256"),
    "a range without an end": (["tune", "--target=cpu", "--range=tile_q=16:"], "--range", "tile_q", "LOW:HIGH"),
    "a range of an unknown field": (["tune", "--target=cpu", "--range=tiles=16"], "--range", "tiles", "tile_kv"),
    "problems that do not exist": (["tune", "--target=cpu", "--problems=/nowhere/at/all"], "/nowhere/at/all", "read"),
    "problems beside options": (["tune", "--target=cpu", f"--problems={EMPTY}", "--seq=5"], "--seq", "--problems"),
    "rows of no verification": (["run", "--target=cpu", "--seq=8", "--verify-rows=4"], "--verify-rows", "--verify"),
    "a problem whose quotation stays open": (["tune", "--target=cpu", f"--problems={OPEN_QUOTATION}"], ":1:", "quotation"),
    "a problem with a target of its own": (["tune", "--target=cpu", f"--problems={OWN_TARGET}"], ":1:", "--target"),
    "problems of nothing": (["tune", "--target=cpu", f"--problems={EMPTY}"], EMPTY, "no problem"),
    "problems of a device": (["tune", "--target=cpu", "--problems=/dev/zero"], "/dev/zero", "device"),
    "a time that is no number": (["tune", "--target=cpu", "--seconds=nan"], "--seconds", "'nan'", "1 to"),
    "candidates of a device": (["tuned", "import", "/dev/zero"], "/dev/zero", "device"),
    "candidates of a folder": (["tuned", "import", "/tmp"], "/tmp", "folder"),
    "an overlap on the CPU": (["run", "--target=cpu", "--seq=8", "--schedule=overlap=both"], "overlap", "none", "both"),
    "a threshold on the CPU": (["run", "--target=cpu", "--seq=8", "--schedule=rescale_threshold=8"], "rescale_threshold", "8"),
    "a report where none can be": (["tune", "--target=cpu", "--report=/nowhere/page.html"], "--report", "/nowhere"),
    "candidates that are not there": (["tuned", "import", "/nowhere/at/all"], "/nowhere/at/all", "read"),
    "no subcommand": ([], "subcommand"),
    "an unknown subcommand": (["rnu"], "rnu", "run"),
    "cache without a subcommand": (["cache"], "subcommand"),
    "cache with an unknown subcommand": (["cache", "wipe"], "wipe"),
    "a size in words": (["cache", "prune", "--max-bytes=lots"], "lots", "512M"),
    "a bundle that cannot be": (["cache", "export", "/proc/nowhere"], "/proc/nowhere"),
}


class Options(RefusalTest):
    def test_run(self):
        for name, (options, *needles) in REFUSED.items():
            with self.subTest(name):
                self.refused(self.workspace("run", "--target", "cpu", "--seq=10", "--dim=8", "--out", self.out, *options),
                             *needles)

    def test_lines(self):
        for name, (line, *needles) in LINES.items():
            with self.subTest(name):
                self.refused(self.workspace(*line), *needles)

    def test_good_options_pass(self):
        outcome = self.workspace("run", "--target", "cpu", "--seq=10", "--dim=8", "--heads=6:2", "--window=5,-1",
                                 "--schedule=tile_q=32,tile_kv=32", "--mask", "k < q + 3", "--out", self.out)
        self.assertEqual(outcome.code, 0, str(outcome))


if __name__ == "__main__":
    unittest.main()
