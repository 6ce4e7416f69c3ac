"""The demo: the main job of the product, run to its end on this machine, with faults, checked."""

from __future__ import annotations

from demo.stage import DemoFailedError, run_demo

__all__ = ["DemoFailedError", "run_demo"]
