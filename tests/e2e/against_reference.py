"""Runs one problem through the program, forward and backward, and compares every output with float64."""
import numpy as np

from product import tensors, tool
from product.reference import attention


def write_inputs(folder, problem, stored, tables):
    arguments = []
    for name, values in zip(("q", "k", "v", "do"), stored):
        if problem.layout == "bhsd":
            values = values.swapaxes(1, 2)
        np.save(folder / f"{name}.npy", np.asfortranarray(values) if problem.fortran else np.ascontiguousarray(values))
        arguments += [f"--{name}", folder / f"{name}.npy"]
    for name, values in tables.items():
        np.save(folder / f"{name}.npy", values)
        arguments += ["--table", f"{name}={folder / name}.npy"]
    return arguments


def failures(workspace, problem, *options):
    """What is wrong with the program's results for the problem, run with more options; empty when all is right."""
    folder = workspace.fresh("problem")
    stored, tables = problem.inputs()
    out = folder / "out"
    outcome = workspace("run", "--target", tool.TARGET, *write_inputs(folder, problem, stored, tables),
                        *problem.arguments(), *options, "--backward", "--json", "--out", out)
    score = (lambda s, p: problem.score.value(s, p)) if problem.score else None
    expected = attention(*(tensors.load(t) for t in stored), scale=problem.scale, softcap=problem.softcap,
                         visible=problem.visible, score=score, tables=tables)
    if problem.mask and min(problem.seq) > 0 and np.isneginf(expected.lse).all():
        refused = outcome.code == 2 and "no query sees any key" in outcome.stderr and not out.exists()
        return [] if refused else ["a mask that hides everything is not refused: " + str(outcome)]
    if outcome.code != 0:
        return [str(outcome)]

    found = []
    for name in ("o", "lse", "dq", "dk", "dv"):
        result = np.load(out / f"{name}.npy")
        if result.dtype != ("f4" if name == "lse" else stored[0].dtype):
            found.append(f"{name} is stored as {result.dtype}")
            continue
        values = tensors.load(result)
        if name != "lse" and problem.layout == "bhsd":
            values = values.swapaxes(1, 2)
        # LSE is fp32 for every element type and made from fp32 sums.
        wrong = tensors.excess(values, getattr(expected, name), "fp32" if name == "lse" else problem.dtype)
        if wrong:
            found.append(f"{name}: {wrong}")
    report = outcome.json
    blind = int(np.isneginf(expected.lse).sum())
    if report["rows_that_see_nothing"] != blind:
        found.append(f"rows_that_see_nothing is {report['rows_that_see_nothing']}, expected {blind}")
    return found
