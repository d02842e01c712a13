"""Failures that users of attention kernels and kernel caches ran into, one module a case."""
