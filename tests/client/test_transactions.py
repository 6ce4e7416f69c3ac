"""The verbs of transactions in both clients, against a real station that runs an app."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from tests.helpers.store_faults import Fate, proxy_to
from waystation import App, AsyncWaystation, Fail, Wait, Waystation, errors
from waystation.client.async_pipelines import AsyncPipelines
from waystation.client.async_transactions import AsyncTransaction, AsyncTransactions
from waystation.client.sync_pipelines import Pipelines
from waystation.client.sync_transactions import Transaction, Transactions
from waystation.errors import (
    DuplicateTransactionError,
    NotSleepingError,
    PipelineUnknownError,
    SwitchInvalidError,
    TransactionFinalError,
    TransactionUnknownError,
)
from waystation.store.address import Address
from waystation.testing import Station


class Refund(msgspec.Struct):
    cents: int


class Bank:
    """Keeps what was paid, by key."""

    def __init__(self) -> None:
        self.paid: dict[str, int] = {}

    def refund(self, refund: Refund, *, key: str) -> dict[str, int]:
        self.paid[key] = refund.cents
        return {"paid": refund.cents}


def refunds(bank: Bank) -> App:
    app = App()

    @app.step("refund/approve")
    async def approve(ctx: Any, refund: Refund) -> Any:
        match ctx.switch("approved"):
            case None:
                return Fail("nobody answered") if ctx.timed_out else Wait("approved", at_most="2d")
            case "yes":
                return refund
            case _:
                return Fail("refused")

    @app.step("refund/pay")
    async def pay(ctx: Any, refund: Refund) -> Any:
        return await ctx.once("pay", lambda: bank.refund(refund, key=ctx.idempotency_key))

    app.pipeline("refund", ["refund/approve", "refund/pay"])
    return app


@pytest.fixture(scope="module")
def bank() -> Bank:
    return Bank()


@pytest.fixture(scope="module")
def refunding(bank: Bank) -> Iterator[Station]:
    with Station(app=refunds(bank)) as station:
        yield station


@pytest.fixture
def ws(refunding: Station) -> Iterator[Waystation]:
    with Waystation(refunding.url) as opened:
        yield opened


def rests(tx: Transaction, status: str, *, above: int = 0, seconds: float = 20.0) -> None:
    """Waits until it has a status, with an update that is newer than one of before."""
    end = time.monotonic() + seconds
    while True:
        found = tx.get()
        if found.status == status and found.metadata.sequence_of_update > above:
            return
        assert time.monotonic() < end, found
        time.sleep(0.01)


def test_the_first_lines_that_everyone_reads(ws: Waystation, bank: Bank) -> None:
    tx = ws.transactions.start("refund", {"cents": 500}, external_id="r-17")
    tx.set_switch("approved", "yes")
    assert tx.wait("30s").status == "success"

    assert tx.summary.output == {"paid": 500}
    assert (tx.summary.ended, tx.summary.succeeded, tx.duplicate) == (True, True, False)
    assert list(bank.paid.values()) == [500]
    again = ws.transactions.start("refund", {"cents": 500}, external_id="r-17")
    assert (again.id, again.duplicate) == (tx.id, True)


def test_nobody_answers_for_three_days(ws: Waystation, refunding: Station) -> None:
    tx = ws.transactions.start("refund", {"cents": 1})
    rests(tx, "waiting_switch")
    assert tx.wait("50ms").status == "waiting_switch"
    refunding.advance(days=3)
    ended = tx.wait("30s")
    assert (ended.status, ended.output) == ("failed", {"error": "nobody answered"})


def test_a_wait_goes_on_over_a_jump_in_time(ws: Waystation, refunding: Station) -> None:
    tx = ws.transactions.start("refund", {"cents": 1})
    # If it began to wait for its switch after the jump, it would wait for two days more.
    rests(tx, "waiting_switch")
    jump = threading.Timer(0.2, lambda: refunding.advance(days=3))
    jump.start()
    assert tx.wait("30s").status == "failed"
    jump.join()


async def test_many_who_wait_do_not_keep_out_what_they_wait_for(refunding: Station) -> None:
    async with AsyncWaystation(refunding.url) as ws:
        tx = await ws.transactions.start("refund", {"cents": 3})
        waits = [asyncio.create_task(tx.wait("30s")) for _ in range(120)]
        await asyncio.sleep(0)  # All of them have their connections, or wait for one.
        async with asyncio.timeout(10):
            await tx.set_switch("approved", "yes")
            assert {(await each).status for each in waits} == {"success"}


def test_every_verb_of_a_transaction(ws: Waystation) -> None:
    tx = ws.transactions.start("refund", {"cents": 2}, metadata={"lang": "de"})
    rests(tx, "waiting_switch")
    assert tx.wait("50ms").status == "waiting_switch"
    assert tx.why().code == "waiting_switch"
    assert tx.set_switch("other", 1).switches == {"other": 1}
    assert tx.delete_switch("other").switches == {}
    (step,) = tx.journal().steps
    assert (step.type, step.last[-1].outcome) == ("refund/approve", "waiting")
    assert tx.children().total == 0
    before = tx.get().metadata.sequence_of_update
    tx.wake()
    rests(tx, "waiting_switch", above=before)
    assert tx.wait("50ms").status == "waiting_switch", "it was called again, and waits again"
    cancelled = tx.cancel("sold out")
    assert (cancelled.outcome, tx.get().status) == ("cancelled", "cancelled")
    assert tx.why().facts["cause"] == "sold out"
    assert ws.transactions.open(tx.id).summary == tx.summary
    assert tx.id in repr(tx)


def test_a_start_can_wait_and_have_a_deadline(ws: Waystation, refunding: Station) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=30)
    later = ws.transactions.start("refund", {"cents": 2}, start_at=tomorrow)
    soon = ws.transactions.start("refund", {"cents": 2}, deadline=timedelta(hours=1))
    assert later.summary.status == "scheduled"
    rests(soon, "waiting_switch")
    assert soon.wait("50ms").status == "waiting_switch"
    refunding.advance(hours=2)
    assert soon.wait("30s").status == "timeout"
    later.cancel()
    with pytest.raises(errors.InvalidInputError, match="time zone"):
        ws.transactions.start("refund", start_at=datetime(2030, 1, 1))


def test_errors_come_as_their_classes(ws: Waystation) -> None:
    tx = ws.transactions.start("refund", {"cents": 3}, external_id="r-18")
    with pytest.raises(DuplicateTransactionError) as duplicate:
        ws.transactions.start("refund", {"cents": 4}, external_id="r-18")
    assert duplicate.value.existing_id == tx.id
    with pytest.raises(PipelineUnknownError):
        ws.transactions.start("nobody")
    with pytest.raises(SwitchInvalidError):
        tx.set_switch("approved", "a b")
    with pytest.raises(TransactionUnknownError):
        ws.transactions.get("tx-0000" + "f" * 36)
    assert ws.transactions.why("tx-1").code == "unknown"
    tx.set_switch("approved", "no")
    assert tx.wait("30s").status == "failed"
    with pytest.raises(TransactionFinalError):
        tx.cancel()
    with pytest.raises(TransactionFinalError):
        tx.wake()
    ws.pipelines.put("elsewhere", ["nobody/serves"], group="elsewhere")
    queued = ws.transactions.start("elsewhere")
    with pytest.raises(NotSleepingError) as awake:
        queued.wake()
    assert awake.value.state == "queued"
    with pytest.raises(errors.InvalidInputError, match="not JSON"):
        ws.transactions.start("refund", {1, object()})


def deeply_nested() -> Any:
    found: list[Any] = []
    for _ in range(100_000):
        found = [found]
    return found


@pytest.mark.parametrize(
    "wrong",
    [
        lambda ws: ws.transactions.start("refund", deeply_nested()),
        lambda ws: ws.transactions.start("refund", deadline=5),
        lambda ws: ws.transactions.start("refund", start_at=object()),
        lambda ws: ws.transactions.set_switch("tx-1", "approved", object()),
        lambda ws: ws.transactions.set_switch("tx-1", "approved", float("nan")),
        lambda ws: ws.transactions.wait("tx-1", object()),
        lambda ws: ws.pipelines.put("refund", [object()]),
        lambda ws: ws.pipelines.put("refund", ["refund/pay"], description=object()),
    ],
)
def test_what_cannot_be_sent_is_an_error_of_ours(
    ws: Waystation, wrong: Callable[[Waystation], object]
) -> None:
    with pytest.raises(errors.InvalidInputError):
        wrong(ws)


def test_transactions_are_listed(ws: Waystation) -> None:
    tx = ws.transactions.start("refund", {"cents": 5}, external_id="r-19")
    rests(tx, "waiting_switch")
    (row,) = ws.transactions.list(external_id="r-19")
    assert (row.id, row.state, row.switch) == (tx.id, "waiting_switch", "approved")
    assert tx.id in {each.id for each in ws.transactions.list(state="waiting_switch")}
    assert tx.id in {each.id for each in ws.transactions.list(pipeline="refund")}


def test_pipelines_have_verbs_too(ws: Waystation) -> None:
    made = ws.pipelines.put("made", ["util/checkpoint"], description="Mine.")
    assert (made.definition.description, made.unserved) == ("Mine.", [])
    assert ws.pipelines.get("made") == made
    assert ws.pipelines.version("made", made.active) == made.definition
    assert ws.pipelines.pause("made").paused
    held = ws.transactions.start("made", 7)
    rests(held, "held")
    assert held.wait("50ms").status == "held"
    assert not ws.pipelines.resume("made").paused
    assert held.wait("30s").output == 7
    assert "made" in [each.name for each in ws.pipelines.list()]
    ws.pipelines.delete("made")
    with pytest.raises(PipelineUnknownError):
        ws.pipelines.get("made")


async def test_the_asynchronous_client_does_the_same(refunding: Station) -> None:
    async with AsyncWaystation(refunding.url) as ws:
        tx = await ws.transactions.start("refund", {"cents": 6})
        waiting = asyncio.ensure_future(tx.wait("30s"))
        await tx.set_switch("approved", "yes")
        assert (await waiting).output == {"paid": 6}
        assert [
            each.id async for each in ws.transactions.list(state="complete") if each.id == tx.id
        ]


async def test_a_start_with_an_external_id_is_repeated_when_its_reply_is_lost(
    refunding: Station,
) -> None:
    """F-02: one transaction, the same id."""
    port = int(refunding.url.rpartition(":")[2])
    async with (
        proxy_to(Address(host="127.0.0.1", port=port)) as proxy,
        AsyncWaystation(f"http://127.0.0.1:{proxy.address.port}") as ws,
    ):
        await proxy.set_fates(replies=Fate.CUT)
        starting = asyncio.ensure_future(
            ws.transactions.start("refund", {"cents": 7}, external_id="r-20")
        )
        await proxy.met.wait()
        await proxy.set_fates()
        tx = await starting
        assert tx.duplicate
        (row,) = [each async for each in ws.transactions.list(external_id="r-20")]
        assert row.id == tx.id


async def test_a_start_without_one_is_not_repeated(refunding: Station) -> None:
    port = int(refunding.url.rpartition(":")[2])
    async with (
        proxy_to(Address(host="127.0.0.1", port=port)) as proxy,
        AsyncWaystation(f"http://127.0.0.1:{proxy.address.port}") as ws,
    ):
        await proxy.set_fates(replies=Fate.CUT)
        with pytest.raises(errors.StationUnreachableError):
            await ws.transactions.start("refund", {"cents": 8})
        assert proxy.received.count(b"POST /v1/transactions") == 1


async def test_a_wait_outlasts_a_station_that_is_away(refunding: Station) -> None:
    port = int(refunding.url.rpartition(":")[2])
    async with (
        proxy_to(Address(host="127.0.0.1", port=port)) as proxy,
        AsyncWaystation(f"http://127.0.0.1:{proxy.address.port}") as ws,
        AsyncWaystation(refunding.url) as beside,
    ):
        tx = await ws.transactions.start("refund", {"cents": 9}, external_id="r-21")
        await proxy.set_fates(requests=Fate.CUT, replies=Fate.CUT)
        waiting = asyncio.ensure_future(tx.wait("30s"))
        await proxy.met.wait()
        await beside.transactions.set_switch(tx.id, "approved", "yes")
        await proxy.set_fates()
        assert (await waiting).succeeded


@pytest.mark.parametrize(
    ("ordinary", "asynchronous"),
    [
        (Transactions, AsyncTransactions),
        (Transaction, AsyncTransaction),
        (Pipelines, AsyncPipelines),
    ],
)
def test_both_clients_have_the_same_verbs(ordinary: type, asynchronous: type) -> None:
    def verbs(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(verb).parameters)
            for name, verb in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }

    assert verbs(ordinary) == verbs(asynchronous)
