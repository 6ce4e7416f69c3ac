"""The app of `bench transactions`: steps that do nothing, note their delay, or sleep."""

from __future__ import annotations

import time
from typing import Any

from waystation.transactions.app import App
from waystation.transactions.outcomes import RetryLater

NO_OP, NO_OP_3, TIMED, SLEEPER = "no-op", "no-op-3", "timed", "sleeper"

app = App()
#: From the start of a transaction to the call of its step, since somebody asked.
delays_ms: list[float] = []


@app.step("bench/no-op")
async def no_op(ctx: Any, given: Any) -> None:
    """Passes on what it was given."""


@app.step("bench/timed")
async def timed(ctx: Any, stamp: float) -> None:
    """Notes how long it took from the stamp to here; both processes have the same clock."""
    delays_ms.append((time.monotonic() - stamp) * 1000)


@app.step("bench/sleep")
async def sleep(ctx: Any, given: Any) -> RetryLater:
    """Is asleep for longer than any benchmark takes."""
    return RetryLater("1h")


app.pipeline(NO_OP, ["bench/no-op"])
app.pipeline(NO_OP_3, ["bench/no-op"] * 3)
app.pipeline(TIMED, ["bench/timed"])
app.pipeline(SLEEPER, ["bench/sleep"])
