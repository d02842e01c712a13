"""The list of generated problems: kernels (what is compiled in) times shapes (what one kernel takes at run time).

A kernel is a mask, a score, head dims, an element type and a head group; each gets several shapes, so that hundreds of
problems cost a few dozen compilations, and so that one compiled kernel is seen to serve every length.
"""
import random
from dataclasses import dataclass

import numpy as np

from e2e.functions import MASKS, SCORES, Mask, Score, combinations
from product import tensors

LENGTHS = [(1, 1), (0, 5), (5, 0), (1, 77), (77, 1), (64, 64), (65, 63), (129, 33), (33, 129), (127, 128), (130, 190),
           (190, 66), (200, 200), (255, 257), (3, 2), (96, 97)]
DIMS = [(64, 64), (32, 32), (8, 8), (128, 128), (64, 96), (40, 40), (192, 128), (16, 72), (7, 7), (72, 40), (33, 17), (256, 256)]
HEADS = [(1, 1), (4, 2), (3, 1), (6, 2), (2, 2), (5, 1), (4, 1)]
SHAPES_A_KERNEL = 7


@dataclass(frozen=True)
class Problem:
    number: int
    batch: int
    heads: tuple
    seq: tuple
    dims: tuple
    dtype: str
    layout: str = "bshd"
    fortran: bool = False
    causal: bool = False
    window: str = ""
    softcap: float = 0
    scale: float = None
    mask: Mask = None
    score: Score = None

    @property
    def on_cuda(self):
        """CUDA kernels take head dims that are multiples of 8, up to 256."""
        return all(d % 8 == 0 and d <= 256 for d in self.dims)

    def arguments(self):
        """The function's options, without files."""
        options = ["--dtype", self.dtype, "--layout", self.layout]
        if self.causal:
            options.append("--causal")
        for name, value in (("window", self.window), ("softcap", self.softcap), ("scale", self.scale)):
            if value not in ("", 0, None) or (name == "scale" and value == 0):
                options.append(f"--{name}={value}")
        if self.mask:
            options.append(f"--mask={self.mask.text}")
        if self.score:
            options.append(f"--score={self.score.text}")
        return options

    def visible(self, p):
        """Causal, window and mask together."""
        seen = np.ones((1, 1, p.sq, p.sk), bool)
        diagonal = p.q + p.sk - p.sq
        if self.causal:
            seen = seen & (p.k <= diagonal)
        if self.window:
            left, right = map(int, self.window.split(","))
            seen = seen & ((left < 0) | (p.k >= diagonal - left)) & ((right < 0) | (p.k <= diagonal + right))
        return seen & self.mask.visible(p) if self.mask else seen

    def tables(self, rng):
        makers = {**(self.mask.tables if self.mask else {}), **(self.score.tables if self.score else {})}
        return {name: make(rng, self.batch, self.heads[0], *self.seq) for name, make in makers.items()}

    def inputs(self):
        """Stored q, k, v, dO in (batch, sequence, heads, dim), and tables."""
        rng = np.random.default_rng(self.number)
        (hq, hk), (sq, sk), (d, dv) = self.heads, self.seq, self.dims
        shapes = [(self.batch, sq, hq, d), (self.batch, sk, hk, d), (self.batch, sk, hk, dv), (self.batch, sq, hq, dv)]
        return [tensors.store(rng.standard_normal(s), self.dtype) for s in shapes], self.tables(rng)

    def __str__(self):
        return (f"problem {self.number}: batch {self.batch}, heads {self.heads}, lengths {self.seq}, dims {self.dims}"
                f"{', Fortran order' if self.fortran else ''}, {' '.join(self.arguments())}")


def kernels():
    """What is compiled in, by family: the names of the test modules' halves."""
    flags = [dict(), dict(causal=True), *(dict(window=w) for w in ("40,0", "-1,0", "10,10", "0,0", "-1,5", "5,-1", "63,64")),
             dict(causal=True, window="20,7"), dict(softcap=5.0), dict(softcap=30.0, causal=True), dict(scale=-0.3),
             dict(scale=0.0, causal=True), dict(scale=1.0, window="30,30"), dict(softcap=2.5, score=SCORES[1])]
    masks = [dict(mask=m) for m in MASKS] + [dict(mask=MASKS[1], causal=True), dict(mask=MASKS[5], window="70,70")]
    combined = [dict(mask=m) for m in combinations(8, seed=11)]
    scores = [dict(score=s) for s in SCORES]
    both = [dict(score=SCORES[0], causal=True), dict(score=SCORES[2], mask=MASKS[3]), dict(score=SCORES[7], window="25,25"),
            dict(score=SCORES[5], mask=MASKS[20], softcap=4.0), dict(score=SCORES[9], mask=MASKS[13])]
    return {"flags": flags, "masks": masks, "combinations": combined, "scores": scores + both}


def problems(family):
    """The family's problems; the same list on every machine and for every target."""
    rng = random.Random(family)
    made = []
    for index, function in enumerate(kernels()[family]):
        dims, dtype, heads = DIMS[(index * 5 + len(family)) % len(DIMS)], tensors.DTYPES[index % 3], rng.choice(HEADS)
        square = "mask" in function and function["mask"].square
        for lengths in rng.sample(LENGTHS, SHAPES_A_KERNEL):
            if square:
                lengths = (lengths[0], lengths[0])
            made.append(Problem(number=len(made) + 1000 * len(family), batch=rng.choice((1, 1, 2, 3)), heads=heads, seq=lengths,
                                dims=dims, dtype=dtype, layout=rng.choice(("bshd", "bhsd")), fortran=rng.random() < 0.1,
                                **function))
    return made
