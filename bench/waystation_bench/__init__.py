"""Benchmarks: `waystation bench NAME` measures us, our peers and the limit in one run.

Everything that is measured runs in processes of its own: the store, the servers, and the driver
that makes the load. `docs/internals/performance.md` tells how to read the figures.
"""
