"""Element types: what a .npy file stores, which float64 values those are, and how near a result must come."""
import numpy as np

DTYPES = ("fp32", "fp16", "bf16")


def to_bf16(values):
    """Bit patterns of bfloat16, rounded to nearest even."""
    bits = np.ascontiguousarray(values, "f4").view("u4")
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("u2")


def store(values, dtype):
    """As the program reads and writes them: float32, float16, or bfloat16 bits in uint16."""
    if dtype == "bf16":
        return to_bf16(values)
    return np.asarray(values).astype("f4" if dtype == "fp32" else "f2")


def load(stored):
    """The stored values in float64."""
    if stored.dtype == np.uint16:
        return (stored.astype("u4") << 16).view("f4").astype("f8")
    return stored.astype("f8")


# Largest error of a result against float64, times max(1, max|reference|). The dtype decides: storage rounds the result
# and, below fp32, the probabilities and their gradients between the two matrix products.
LIMITS = {"fp32": 2e-5, "fp16": 6e-3, "bf16": 3e-2}


def excess(found, expected, dtype):
    """None when `found` is right by the dtype's limit, else what is wrong with it. Both float64."""
    if found.shape != expected.shape:
        return f"shape {found.shape}, expected {expected.shape}"
    if found.size == 0:
        return None
    odd = ~np.isfinite(expected)
    same = np.where(np.isnan(expected), np.isnan(found), found == expected)
    wrong = np.where(odd, ~same, ~np.isfinite(found))
    if wrong.any():
        at = tuple(map(int, np.argwhere(wrong)[0]))
        return f"{int(wrong.sum())} non-finite values differ, first at {at}: {found[at]}, expected {expected[at]}"
    if odd.all():
        return None
    error = np.where(odd, 0.0, np.abs(np.where(odd, 0, found) - np.where(odd, 0, expected)))
    limit = LIMITS[dtype] * max(1.0, float(np.abs(expected[~odd]).max()))
    if error.max() > limit:
        at = tuple(map(int, np.unravel_index(error.argmax(), error.shape)))
        return f"error {error.max():.3g} above {limit:.3g} at {at}: {found[at]:.9g}, expected {expected[at]:.9g}"
    return None
