"""What the demo's worker runs: its steps, and a pipeline for every kind of transaction."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from waystation.transactions.app import App
from waystation.transactions.context import BlockingContext, Context
from waystation.transactions.outcomes import Abort, Child, Fail, Parallel, RetryLater, Wait

#: In the folder of the worker: every payment that was asked for, a line each.
LEDGER = Path("ledger.txt")
#: As long as there is no such file, whoever has paid does not come to an end.
GO = Path("go.txt")
CHILDREN = 20
RETRIES = 3
SLEEPING_CHILD = "demo-sleeping-child"


class Order(msgspec.Struct):
    """What is to be done."""

    number: int
    cents: int = 0


app = App()


@app.step("demo/price")
async def price(ctx: Context, order: Order) -> Order:
    """A plain step."""
    return Order(order.number, 100 * order.number)


@app.step("demo/tax")
def tax(ctx: BlockingContext, order: Order) -> Order:
    """A plain step that runs in a thread."""
    return Order(order.number, order.cents + order.cents // 5)


@app.step("demo/stubborn")
async def stubborn(ctx: Context, order: Order) -> Any:
    """Asks to be called again, three times."""
    if ctx.retries < RETRIES:
        return RetryLater("100ms", factor=2, jitter=0.5, note="not yet")
    return {"retries": ctx.retries}


@app.step("demo/approve")
async def approve(ctx: Context, order: Order) -> Any:
    """Waits for a switch; not for long, if the pipeline says so."""
    match ctx.switch("approved"):
        case None:
            if ctx.timed_out:
                return Fail("nobody answered")
            return Wait("approved", at_most=ctx.options.get("at_most", "2d"))
        case "yes":
            return order
        case _:
            return Fail("refused")


@app.step("demo/pay")
async def pay(ctx: Context, order: Order) -> Any:
    """Pays once, and takes its time to come to an end: long enough to be killed after it."""
    receipt = await ctx.once("pay", lambda: _pay(ctx.idempotency_key))
    await ctx.progress(receipt)
    while not _may_end():
        await asyncio.sleep(0.02)
    return receipt


@app.step("demo/split")
async def split(ctx: Context, order: Order) -> Parallel:
    """Many children beside each other."""
    return Parallel([Child("demo-part", Order(number)) for number in range(CHILDREN)])


@app.step("demo/split-and-fail")
async def split_and_fail(ctx: Context, order: Order) -> Parallel:
    """One child that fails, beside some that would sleep for an hour."""
    return Parallel([Child(SLEEPING_CHILD), Child("demo-fail"), Child(SLEEPING_CHILD)])


@app.step("demo/fail")
async def fail(ctx: Context, order: Order) -> Fail:
    """Says no."""
    return Fail("sold out")


@app.step("demo/abort")
async def abort(ctx: Context, order: Order) -> Abort:
    """Wants somebody to look at it."""
    return Abort("the account is closed")


@app.step("demo/break")
async def break_(ctx: Context, order: Order) -> Any:
    """Has a mistake in it."""
    return order.number / 0


@app.step("demo/hang", timeout="300ms")
async def hang(ctx: Context, order: Order) -> Any:
    """Takes longer than it may."""
    await asyncio.sleep(3600)


def _may_end() -> bool:
    return GO.exists()


def _pay(key: str) -> dict[str, str]:
    with LEDGER.open("a", encoding="utf-8") as ledger:
        ledger.write(f"{key}\n")
    return {"paid": key[:8]}


_AN_HOUR = ("util/delay", {"min": 3_600_000, "max": 3_600_000})
_ROUTES = {
    "field": "number",
    "map": [{"value": 0, "pipeline": "demo-fixed"}],
    "defaultPipeline": "demo-part",
}

app.pipeline("demo-plain", ["demo/price", "demo/tax", "util/checkpoint"])
app.pipeline("demo-sleep", [("util/delay", {"min": 1500, "max": 2500}), "demo/price"])
app.pipeline("demo-hour", [_AN_HOUR])
app.pipeline(SLEEPING_CHILD, [_AN_HOUR], startable=False)
app.pipeline("demo-retry", ["demo/stubborn"])
app.pipeline("demo-switch", ["demo/approve", "demo/price"])
app.pipeline("demo-rest", ["demo/approve", "demo/price"])
app.pipeline("demo-nobody", [("demo/approve", {"at_most": "1s"})])
app.pipeline("demo-part", ["demo/price", "demo/tax"], startable=False)
app.pipeline("demo-fixed", [("util/fixed-reply", {"reply": "a gift"})], startable=False)
app.pipeline("demo-child", [("util/child", {"pipeline": "demo-part"}), "demo/tax"])
app.pipeline("demo-router", [("util/router", _ROUTES)])
app.pipeline("demo-parallel", ["demo/split"])
app.pipeline("demo-parallel-fails", ["demo/split-and-fail"])
app.pipeline("demo-once", ["demo/pay"])
app.pipeline("demo-fail", ["demo/fail"])
app.pipeline("demo-abort", ["demo/abort"])
app.pipeline("demo-break", ["demo/break"])
app.pipeline("demo-hang", ["demo/hang"])
app.pipeline("demo-paused", ["demo/price"])
