"""Runs one test module for ctest: run_module.py [--gpu] MODULE...

Exit code 77, which ctest shows as skipped, when numpy, a tool that runs start under, or (with --gpu) a device is
missing; the reason is printed.
"""
import shutil
import subprocess
import sys
import unittest

SKIPPED = 77


def missing(gpu):
    try:
        import numpy  # noqa: F401
    except ImportError:
        return "numpy missing (Debian: python3-numpy)"
    from product.tool import UNDER, program
    if UNDER and not shutil.which(UNDER[0]):
        return f"{UNDER[0]} missing"
    if not gpu:
        return None
    probe = subprocess.run([program(), "doctor"], capture_output=True, text=True, timeout=60)
    devices = [line for line in probe.stdout.splitlines() if line.startswith("+ GPU")]
    return None if devices else "no device"


def main(arguments):
    gpu = "--gpu" in arguments
    modules = [a for a in arguments if a != "--gpu"]
    reason = missing(gpu)
    # Without numpy each module counts as one.
    suite = unittest.defaultTestLoader.loadTestsFromNames(modules)
    if reason:
        print(f"skipped: {reason} ({suite.countTestCases()} tests of {', '.join(modules)})")
        return SKIPPED
    result = unittest.TextTestRunner(verbosity=1).run(suite)
    for test, why in result.skipped:
        print(f"skipped: {why} ({test})")
    if not result.wasSuccessful():
        return 1
    if result.testsRun == 0:
        print("no test ran")
        return 1
    return SKIPPED if len(result.skipped) == result.testsRun else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
