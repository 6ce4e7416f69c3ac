"""Waiting for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(look: Callable[[], object], *, seconds: float = 60.0) -> None:
    """Waits until something is so."""
    end = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.01)
