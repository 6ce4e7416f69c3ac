"""Transactions in the demo: every kind of them, and each ends as it should though a worker dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from demo.stage import ACT_SECONDS_MAX, Stage
from demo.station import DemoStation
from demo.steps import CHILDREN, GO, LEDGER, RETRIES, SLEEPING_CHILD
from waystation.client import AsyncTransaction, AsyncWaystation, TransactionSummary

_APP = "demo.steps:app"


class _Kind(msgspec.Struct, frozen=True):
    """A kind of transaction: what it shows, how many there are, and what each must end with."""

    title: str
    pipeline: str
    count: int
    status: str = "success"
    #: From its number; None: whatever it is.
    output: Callable[[int], Any] | None = None
    start_at: str | None = None
    deadline: str | None = None


def _order(number: int, cents: int) -> dict[str, int]:
    return {"number": number, "cents": cents}


def _taxed(number: int) -> dict[str, int]:
    return _order(number, 120 * number)


def _error(note: str) -> Callable[[int], Any]:
    return lambda _: {"error": note}


_SWITCHED = _Kind("waited for a switch", "demo-switch", 20, output=lambda n: _order(n, 100 * n))
_HELD = _Kind("held by a paused pipeline", "demo-paused", 10, output=lambda n: _order(n, 100 * n))
_PAID = _Kind("paid once", "demo-once", 20)
_CANCELLED = _Kind("cancelled in their sleep", "demo-hour", 10, "cancelled")
_KINDS = (
    _Kind("plain steps", "demo-plain", 100, output=_taxed),
    _Kind("slept", "demo-sleep", 20, output=lambda n: _order(n, 100 * n)),
    _Kind("tried again", "demo-retry", 20, output=lambda _: {"retries": RETRIES}),
    _SWITCHED,
    _Kind("waited for a switch in vain", "demo-nobody", 10, "failed", _error("nobody answered")),
    _Kind("called a child", "demo-child", 20, output=lambda n: _order(n, 144 * n)),
    _Kind("took a branch", "demo-router", 10, output=lambda n: _taxed(n) if n else "a gift"),
    _Kind(
        f"had {CHILDREN} children at once",
        "demo-parallel",
        5,
        output=lambda _: [_taxed(n) for n in range(CHILDREN)],
    ),
    _Kind("lost a child, cancelled the others", "demo-parallel-fails", 3, "failed"),
    _PAID,
    _Kind("said no", "demo-fail", 10, "failed", _error("sold out")),
    _Kind("gave up", "demo-abort", 10, "aborted", _error("the account is closed")),
    _Kind("broke", "demo-break", 10, "internal-error"),
    _Kind("were over their step's time", "demo-hang", 5, "timeout"),
    _Kind("were over their deadline", "demo-hour", 10, "timeout", deadline="1s"),
    _CANCELLED,
    _HELD,
    _Kind("began later", "demo-plain", 10, output=_taxed, start_at="1s"),
)

_Started = dict[_Kind, list[AsyncTransaction]]


async def every_kind_of_transaction(stage: Stage, station: DemoStation) -> None:
    """Starts some of every kind, kills their worker, and checks what each has ended with."""
    total = sum(kind.count for kind in _KINDS)
    stage.act(f"{total} transactions of {len(_KINDS)} kinds; their worker dies on the way")
    worker = station.worker(_APP)
    try:
        await asyncio.to_thread(worker.facts)
        async with AsyncWaystation(station.url) as client:
            await client.pipelines.pause(_HELD.pipeline)
            started = await _start_all(client)
            await _report(started[_PAID])
            under_way = [each async for each in client.transactions.list(state="running")]
            stage.say(f"kill -9 {worker.kill()}: the worker, {len(under_way)} of them in its hands")
            await _meanwhile(client, started)
            again = await _start_all(client)
            known = sum(each.duplicate for kind in again.values() for each in kind)
            stage.check("started again and known", known, total)
            (station.data / GO).touch()
            worker = station.worker(_APP)
            ends = _ends(started, stage.progress("ended", total))
            found, _ = await asyncio.gather(ends, asyncio.to_thread(worker.facts))
            _check(stage, started, found)
            # A list may name one twice.
            listed = client.transactions.list(pipeline=SLEEPING_CHILD)
            children = {each.id: each.status async for each in listed}
            cancelled = sum(status == "cancelled" for status in children.values())
            stage.check("children cancelled", cancelled, 6)
    finally:
        worker.stop()
    paid = (station.data / LEDGER).read_text(encoding="utf-8").split()
    stage.check("payments made", len(set(paid)), _PAID.count)
    stage.check("payments made twice", len(paid) - len(set(paid)), 0)


async def _start_all(client: AsyncWaystation) -> _Started:
    async def start(kind: _Kind, number: int) -> AsyncTransaction:
        return await client.transactions.start(
            kind.pipeline,
            {"number": number},
            external_id=f"{kind.title} {number}",
            start_at=kind.start_at,
            deadline=kind.deadline,
        )

    return {
        kind: await asyncio.gather(*(start(kind, number) for number in range(kind.count)))
        for kind in _KINDS
    }


async def _report(payments: list[AsyncTransaction]) -> None:
    """Waits until all report that they have paid, which is before they come to an end."""
    for each in payments:
        while (await each.get()).progress is None:
            await asyncio.sleep(0.01)


async def _meanwhile(client: AsyncWaystation, started: _Started) -> None:
    """What clients do does not need a worker that lives."""
    await asyncio.gather(
        *(each.set_switch("approved", "yes") for each in started[_SWITCHED]),
        *(each.cancel("changed my mind") for each in started[_CANCELLED]),
        client.pipelines.resume(_HELD.pipeline),
    )


async def _ends(started: _Started, done: Callable[[], None]) -> dict[str, TransactionSummary]:
    async def end(transaction: AsyncTransaction) -> TransactionSummary:
        summary = await transaction.wait(f"{ACT_SECONDS_MAX}s")
        done()
        return summary

    waits = [end(each) for transactions in started.values() for each in transactions]
    return {summary.id: summary for summary in await asyncio.gather(*waits)}


def _check(stage: Stage, started: _Started, ends: dict[str, TransactionSummary]) -> None:
    for kind, transactions in started.items():
        right = 0
        for number, each in enumerate(transactions):
            end = ends[each.id]
            good = kind.output is None or end.output == kind.output(number)
            right += end.status == kind.status and good
        stage.check(f"{kind.title}: {kind.status}", right, kind.count)
