"""What a step sees, and `once`: durable before it is used, and gone with its holder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.helpers.store_faults import Fate, proxy_to, store_at
from tests.transactions.calling import ID, call, step_call
from tests.transactions.helpers import LEASE_MS, TERMS, TransactionStore, open_transactions
from waystation import App, BlockingContext, Context, Fail, Wait
from waystation.errors import InvalidInputError, NotFiniteError, TooLargeError
from waystation.logs.streams import StreamLogs
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.testing import CrashPoint, crash_points
from waystation.transactions import names
from waystation.transactions.cells import open_cells
from waystation.transactions.context import ONCE_BYTES_MAX
from waystation.transactions.entry import Entry, NewTransaction
from waystation.transactions.holding import Claimed, Holding
from waystation.transactions.outcomes import Failure, Outcome, Pause, Success
from waystation.transactions.progress import Progress
from waystation.transactions.step_call import (
    ONCE_NAMES_MAX,
    ONCE_STEP_BYTES_MAX,
    StepCall,
    StepEnded,
    TransactionFacts,
)
from waystation.transactions.switches import parse_switches


class Refund(msgspec.Struct):
    cents: int


class Bank:
    """Somebody outside, who counts."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    async def refund(self, refund: Refund, *, key: str) -> dict[str, int]:
        self.keys.append(key)
        return {"paid": refund.cents, "call": len(self.keys)}


app = App()
bank = Bank()


@app.step("refund/approve")
async def approve(ctx, refund: Refund):  # type: ignore[no-untyped-def]
    match ctx.switch("approved"):
        case None:
            return Fail("nobody answered") if ctx.timed_out else Wait("approved", at_most="2d")
        case "yes":
            return refund
        case _:
            return Fail("refused")


@app.step("refund/pay")
async def pay(ctx, refund: Refund):  # type: ignore[no-untyped-def]
    return await ctx.once("pay", lambda: bank.refund(refund, key=ctx.idempotency_key))


app.pipeline("refund", ["refund/approve", "refund/pay"])


def call_of(
    opened: TransactionStore,
    claimed: Claimed,
    place: str = "1",
    recorded: dict[str, bytes] | None = None,
) -> StepCall:
    """The call that a worker makes of a claim, as far as the store has anything to say."""
    prefix = f"once:{place}:".encode()
    return StepCall(
        transaction=TransactionFacts(id=claimed.id, type="p"),
        held=claimed.held,
        place=place,
        records=opened.progress,
        now_ms=lambda: 17,
        switches=parse_switches(claimed.extras.get(b"switches", b"")),
        recorded=recorded
        or {
            name.removeprefix(prefix).decode(): value
            for name, value in claimed.extras.items()
            if name.startswith(prefix)
        },
    )


async def claim_one(opened: TransactionStore) -> Claimed:
    (claimed,) = await opened.claim()
    return claimed


@asynccontextmanager
async def holding_one(server: EmbeddedServer) -> AsyncIterator[tuple[TransactionStore, Claimed]]:
    async with open_transactions(server) as opened:
        await opened.start()
        yield opened, await claim_one(opened)


async def lose(opened: TransactionStore) -> None:
    """The lease ends, and another rescues the transaction."""
    await opened.machine.advance(LEASE_MS / 1000 + 0.001)
    assert (await opened.holding.rescue(0, most=10, rescues_max=3)).done == 1


# -- The example -----------------------------------------------------------------------------


async def approving(**more: Any) -> Outcome:
    return await call(app, "refund/approve", b'{"cents":500}', in_call=step_call(**more))


async def test_the_example_takes_each_of_its_branches() -> None:
    assert await approving() == Pause(switch="approved", at_most_ms=2 * 86_400_000)
    assert await approving(switches={"approved": "yes"}) == Success(b'{"cents":500}')
    # Set in the last moment: it was answered.
    late = await approving(switches={"approved": "yes"}, timed_out=True)
    assert late == Success(b'{"cents":500}')
    refused = await approving(switches={"approved": False})
    assert refused == Failure("failed", b'{"error":"refused"}', "refused")
    unanswered = await approving(timed_out=True)
    assert unanswered == Failure("failed", b'{"error":"nobody answered"}', "nobody answered")


async def test_the_example_pays_once_whoever_calls_it_again(store_server: EmbeddedServer) -> None:
    bank.keys.clear()
    async with holding_one(store_server) as (opened, claimed):
        first = await call(app, "refund/pay", b'{"cents":500}', in_call=call_of(opened, claimed))
        # The process dies before the commit: another one is given the same step.
        await lose(opened)
        again = await claim_one(opened)
        second = await call(app, "refund/pay", b'{"cents":500}', in_call=call_of(opened, again))
        assert first == second == Success(b'{"paid":500,"call":1}')
        assert len(bank.keys) == 1


# -- once ------------------------------------------------------------------------------------


async def test_a_result_is_durable_before_it_is_used(store_server: EmbeddedServer) -> None:
    async with holding_one(store_server) as (opened, claimed):
        ctx = Context(call_of(opened, claimed))
        assert await ctx.once("charge", lambda: {"id": 7}) == {"id": 7}
        assert (await opened.fields(claimed.id))["once:1:charge"] == b'{"id":7}'


async def test_once_result_that_is_not_finite_is_refused_and_not_recorded(
    store_server: EmbeddedServer,
) -> None:
    async with holding_one(store_server) as (opened, claimed):
        ctx = Context(call_of(opened, claimed))
        with pytest.raises(NotFiniteError) as refused:
            await ctx.once("charge", lambda: {"rate": float("nan")})
        assert refused.value.field == "once charge.rate"
        with pytest.raises(NotFiniteError) as refused:
            await ctx.progress([float("inf")])
        assert refused.value.field == "report[0]"
        assert not {"once:1:charge", "progress"} & set(await opened.fields(claimed.id))


async def test_step_output_that_is_not_finite_fails_and_names_its_field(
    store_server: EmbeddedServer,
) -> None:
    app = App()

    @app.step("rates")
    async def rates(ctx: Context) -> dict[str, list[float]]:
        return {"rates": [1.0, float("nan")]}

    async with holding_one(store_server) as (opened, claimed):
        outcome = await call(app, "rates", in_call=call_of(opened, claimed))
        assert isinstance(outcome, Failure)
        told = msgspec.json.decode(outcome.output)
        assert (outcome.status, told["code"], told["field"]) == (
            "internal-error",
            "input.not-finite",
            "output.rates[1]",
        )
        assert "output.rates[1] is NaN" in told["error"]
        assert "output.rates[1] is NaN" in outcome.note


async def test_a_former_holder_gets_no_result_and_its_step_ends(
    store_server: EmbeddedServer,
) -> None:
    """F-13: what a stopped process wakes up to do is refused."""
    app = App()
    swallowed = []

    @app.step("stubborn")
    async def stubborn(ctx: Context) -> str:
        await lose(opened)
        try:
            return str(await ctx.once("charge", lambda: 1))
        except BaseException as error:
            swallowed.append(error)
            return "as if nothing had happened"

    async with holding_one(store_server) as (opened, claimed):
        with pytest.raises(StepEnded, match="another holds"):
            await call(app, "stubborn", in_call=call_of(opened, claimed))
        assert isinstance(swallowed[0], StepEnded)
        assert not isinstance(swallowed[0], Exception)
        assert "once:1:charge" not in await opened.fields(claimed.id)


async def test_a_store_that_is_away_ends_the_step_and_fails_no_transaction(
    store_server: EmbeddedServer,
) -> None:
    app, ran = App(), []

    @app.step("pay")
    async def pay(ctx: Context) -> Any:
        return await ctx.once("charge", lambda: ran.append(1))

    async with (
        holding_one(store_server) as (opened, claimed),
        proxy_to(store_server.address) as proxy,
        store_at(proxy.address, call_seconds_max=2.0, test_mode=True) as store,
    ):
        await store.ping()
        await proxy.set_fates(replies=Fate.SWALLOW)
        in_call = call_of(opened, claimed)
        in_call.records = Progress(store, TERMS)
        with pytest.raises(StepEnded, match="store is away"):
            await call(app, "pay", in_call=in_call)
        assert ran == [1]
        assert (await opened.head(claimed.id)).state == "running"


def test_a_process_may_die_anywhere_around_once(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """F-01: what was recorded is the only result; else fn runs again, with the same key."""
    app, bank = App(), tmp_path / "bank"

    @app.step("pay")
    async def pay(ctx: Context) -> Any:
        def charge() -> int:
            with bank.open("a") as file:
                file.write(f"{ctx.idempotency_key}\n")
            return len(bank.read_text().splitlines())

        return await ctx.once("charge", charge)

    async def holder(store: Store) -> StepCall:
        claim = await Holding(store, TERMS).claim(0, "main", node="n", number=1, most=1, lease_ms=1)
        (claimed,) = claim.items
        return step_call(
            transaction=TransactionFacts(id=claimed.id, type="p"),
            held=claimed.held,
            records=Progress(store, TERMS),
            recorded={"charge": claimed.extras[b"once:1:charge"]} if claimed.extras else {},
        )

    async def prepare(store: Store) -> None:
        bank.unlink(missing_ok=True)
        await open_cells(store, StreamLogs(store), 1)
        await store.call("HSET", names.pipeline(0, "default", "p"), "active", "v", "type", 1)
        new = NewTransaction(
            id=ID, owner="default", pipeline="p", version="v", group="main", state=b"packed"
        )
        await Entry(store, TERMS).start(0, [new])

    async def scenario(store: Store) -> None:
        await call(app, "pay", in_call=await holder(store))

    async def after(store: Store, point: CrashPoint) -> None:
        recorded = await store.call("HGET", names.state(ID), "once:1:charge")
        while (await Holding(store, TERMS).rescue(0, most=1, rescues_max=3)).next_ms >= 0:
            pass  # The lease has a millisecond.
        outcome = await call(app, "pay", in_call=await holder(store))
        keys = bank.read_text().splitlines()
        assert outcome == Success(str(len(keys)).encode() if recorded is None else recorded)
        assert len(set(keys)) == 1
        assert recorded in (None, b"1")
        assert len(keys) <= 2

    points = crash_points(store_server.address, scenario, after, prepare=prepare)
    assert len(points) == 6


async def test_the_same_name_twice_in_one_step_is_an_error(store_server: EmbeddedServer) -> None:
    async with holding_one(store_server) as (opened, claimed):
        ctx = Context(call_of(opened, claimed))
        await ctx.once("charge", lambda: 1)
        with pytest.raises(InvalidInputError, match="'charge' was used twice"):
            await ctx.once("charge", lambda: 2)
        # Also where the first is answered from the record.
        again = Context(step_call(recorded={"charge": b"1"}))
        assert await again.once("charge", lambda: 3) == 1
        with pytest.raises(InvalidInputError, match="'charge' was used twice"):
            await again.once("charge", lambda: 4)


async def test_names_beside_each_other_are_kept_apart(store_server: EmbeddedServer) -> None:
    async def slowly(value: int) -> int:
        await asyncio.sleep(0)
        return value

    async with holding_one(store_server) as (opened, claimed):
        ctx = Context(call_of(opened, claimed))
        both = await asyncio.gather(
            ctx.once("a", lambda: slowly(1)), ctx.once("b", lambda: slowly(2))
        )
        assert both == [1, 2]
        elsewhere = Context(call_of(opened, claimed, place="2.1"))
        assert await elsewhere.once("a", lambda: 3) == 3
        fields = await opened.fields(claimed.id)
        assert {name: value for name, value in fields.items() if name.startswith("once:")} == {
            "once:1:a": b"1",
            "once:1:b": b"2",
            "once:2.1:a": b"3",
        }


async def test_a_result_is_the_same_now_and_later(store_server: EmbeddedServer) -> None:
    async with holding_one(store_server) as (opened, claimed):
        ctx = Context(call_of(opened, claimed))
        assert await ctx.once("plain", lambda: Refund(5)) == {"cents": 5}
        assert await ctx.once("typed", lambda: Refund(5), result_type=Refund) == Refund(5)
        assert await ctx.once("nothing", lambda: None) is None
        await lose(opened)
        again = Context(call_of(opened, await claim_one(opened)))
        assert await again.once("plain", lambda: Refund(6)) == {"cents": 5}
        assert await again.once("typed", lambda: Refund(6), result_type=Refund) == Refund(5)
        assert await again.once("nothing", lambda: 1) is None


async def test_what_fails_is_not_recorded_and_may_be_tried_again(
    store_server: EmbeddedServer,
) -> None:
    async def fails() -> None:
        raise ConnectionError("the bank is away")

    async with holding_one(store_server) as (opened, claimed):
        with pytest.raises(ConnectionError):
            await Context(call_of(opened, claimed)).once("charge", fails)
        assert await Context(call_of(opened, claimed)).once("charge", lambda: 1) == 1


async def test_a_result_that_is_too_large_is_told(store_server: EmbeddedServer) -> None:
    async with holding_one(store_server) as (opened, claimed):
        ctx = Context(call_of(opened, claimed))
        kept = "x" * (ONCE_BYTES_MAX - 2)
        assert await ctx.once("fits", lambda: kept) == kept
        with pytest.raises(TooLargeError, match="'large'"):
            await ctx.once("large", lambda: kept + "x")


async def test_what_a_step_keeps_by_once_is_bounded_before_anything_happens(
    store_server: EmbeddedServer,
) -> None:
    """It is read with every claim: neither its number nor its bytes may grow without end."""
    called: list[int] = []
    async with holding_one(store_server) as (opened, claimed):
        known = {f"old-{n}": b"1" for n in range(ONCE_NAMES_MAX - 1)}
        context = Context(call_of(opened, claimed, recorded=known))
        assert await context.once("old-7", lambda: called.append(7)) == 1
        assert await context.once("last", lambda: 2) == 2
        with pytest.raises(InvalidInputError, match="1000 names"):
            await context.once("more", lambda: called.append(8))
        big = {"a": b"1" * ONCE_STEP_BYTES_MAX}
        context = Context(call_of(opened, claimed, recorded=big))
        with pytest.raises(TooLargeError):
            await context.once("more", lambda: called.append(9))
        assert not called
        fields = await opened.fields(claimed.id)
        assert [name for name in fields if name.startswith("once:")] == ["once:1:last"]


@pytest.mark.parametrize("name", ["", "a b", "a:b", "x" * 64, "ü", None, 1])
async def test_a_name_for_once_is_one_that_can_be_kept(name: Any) -> None:
    with pytest.raises(InvalidInputError, match="not a name for once"):
        await Context(step_call()).once(name, lambda: 1)


async def test_a_plain_step_has_the_same_promises(store_server: EmbeddedServer) -> None:
    app, ran = App(), []

    @app.step("plain")
    def plain(ctx: BlockingContext) -> Any:
        ctx.progress({"at": "the bank"})
        return ctx.once("charge", lambda: ran.append(1) or {"id": len(ran)})

    async with holding_one(store_server) as (opened, claimed):
        first = await call(app, "plain", in_call=call_of(opened, claimed))
        assert (await opened.fields(claimed.id))["progress"] == b'{"at":"the bank"}'
        await lose(opened)
        with pytest.raises(StepEnded, match="another holds"):
            await call(app, "plain", in_call=call_of(opened, claimed))
        second = await call(app, "plain", in_call=call_of(opened, await claim_one(opened)))
        assert first == second == Success(b'{"id":1}')
        assert ran == [1]


async def test_progress_of_a_former_holder_is_refused(store_server: EmbeddedServer) -> None:
    async with holding_one(store_server) as (opened, claimed):
        await Context(call_of(opened, claimed)).progress({"percent": 50})
        assert (await opened.fields(claimed.id))["progress"] == b'{"percent":50}'
        await lose(opened)
        with pytest.raises(StepEnded):
            await Context(call_of(opened, claimed)).progress({"percent": 60})
        assert (await opened.fields(claimed.id))["progress"] == b'{"percent":50}'


# -- What a step sees ------------------------------------------------------------------------


def test_a_context_shows_the_transaction() -> None:
    facts = TransactionFacts(
        id=ID,
        type="refund",
        external_id="r-17",
        data_json=b'{"cents":500}',
        metadata_json=b'{"lang":"en"}',
        deadline_ms=86_400_000,
    )
    ctx = Context(step_call(transaction=facts, retries=3, place="2.1"))
    assert ctx.transaction.id == ID
    assert ctx.transaction.external_id == "r-17"
    assert ctx.transaction.data == {"cents": 500}
    assert ctx.metadata == {"lang": "en"}
    assert ctx.deadline == datetime(1970, 1, 2, tzinfo=UTC)
    assert Context(step_call()).deadline is None
    assert (ctx.retries, ctx.place, ctx.timed_out) == (3, "2.1", False)


def test_the_idempotency_key_is_that_of_the_step_in_its_transaction() -> None:
    key = Context(step_call()).idempotency_key
    assert key == Context(step_call(retries=7)).idempotency_key
    assert key != Context(step_call(place="2")).idempotency_key
    other = TransactionFacts(id="tx-0000" + "1" * 36, type="refund")
    assert key != Context(step_call(transaction=other)).idempotency_key
    assert len(key) == 64


def test_what_a_step_has_seen_of_switches_is_noted() -> None:
    in_call = step_call(switches={"a": "yes", "b": 0})
    ctx = Context(in_call)
    assert (ctx.switch("a"), ctx.switch("c")) == ("yes", None)
    assert in_call.seen == {"a": "yes", "c": None}
    assert ctx.switches == {"a": "yes", "b": 0}
    assert in_call.seen == {"a": "yes", "b": 0, "c": None}
    with pytest.raises(InvalidInputError):
        ctx.switch("not a name")


def test_what_a_step_logs_is_bounded() -> None:
    in_call = step_call()
    assert in_call.log_lines == ()
    ctx = Context(in_call)
    for number in range(150):
        ctx.log.info("line", number=number, event="any name", error="will", text2="do")
    ctx.log.error("ü" * 1000)
    lines = in_call.log_lines
    assert len(lines) == 100
    assert lines[0].text.startswith("line number=51 event=any name")
    assert (lines[-1].ms, lines[-1].level) == (17, "error")
    assert len(lines[-1].text.encode()) <= 500
