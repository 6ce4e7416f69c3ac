"""Pipelines as endpoints: one transaction for a message, however often it is delivered."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.helpers.store_faults import Fate, proxy_to
from tests.subscriptions.parcels import means_with, parcel, subscription_to
from tests.transactions.service_helpers import Outside, open_outside, state_of
from waystation.delivery.request import Failure, Outcome
from waystation.delivery.schedule import Schedule, Verdict
from waystation.errors import BusyError, InvalidInputError, LogFullError, StoreUnavailableError
from waystation.store.embedded.server import EmbeddedServer
from waystation.subscriptions.endpoints.opening import open_endpoint
from waystation.subscriptions.endpoints.protocol import Parcel
from waystation.transactions.order import Order, read_orders
from waystation.transactions.starter import Result

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def deliver(
    outside: Outside, *parcels: Parcel, to: str = "refund", **options: float
) -> list[Outcome]:
    async with means_with(start_many=outside.engine.starter.start_many) as means:
        endpoint = open_endpoint(subscription_to(f"pipeline:{to}", **options), (), means)
        assert endpoint.batch_max == 100
        return await endpoint.send(parcels)


async def started(outside: Outside) -> int:
    return len([key for key in await outside.keys() if ":stateH:" in key])


def verdict(outcome: Outcome) -> Verdict:
    return Schedule().decide(outcome, attempt=1, rng=random.Random(1)).verdict


async def test_a_message_starts_a_transaction_with_its_data_and_trace(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define("refund")
        message = parcel(b'{"cents": 500}', id="o17-0", traceparent=TRACE)
        (outcome,) = await deliver(outside, message)
        assert outcome.succeeded
        (claimed,) = await outside.claim()
        state = state_of(claimed)
        assert (state.type, state.data) == ("refund", b'{"cents": 500}')
        assert (state.external_id, state.traceparent) == ("billing:1:0-3-17:o17-0", TRACE)


async def test_a_redelivery_starts_nothing_twice_and_a_rewind_does(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_outside(store_server.address, tmp_path, cells=3) as outside:
        await outside.define("refund")
        hundred = [parcel(id=f"m-{n}") for n in range(100)]
        for _ in range(2):
            assert all(each.succeeded for each in await deliver(outside, *hundred))
        assert await started(outside) == 100
        (outcome,) = await deliver(outside, parcel(id="m-0", incarnation=2))
        assert outcome.succeeded
        assert await started(outside) == 101


async def test_the_longest_id_that_a_message_can_have_is_an_external_id(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define("refund")
        parcels = [parcel(id=each) for each in ("x" * 100, "ü" * 100, "a b:c", "\u200b")]
        assert all(each.succeeded for each in await deliver(outside, *parcels))
        assert await started(outside) == 4


async def test_what_can_never_start_is_dead_and_keeps_nobody_off(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_outside(store_server.address, tmp_path, state_bytes_max=2000) as outside:
        await outside.define("refund")
        await outside.define("inner", startable=False)
        assert (await deliver(outside, parcel(id="taken")))[0].succeeded
        outcomes = await deliver(
            outside,
            parcel(b"not JSON", id="1"),
            parcel(b"\xff", id="2"),
            parcel(b'{"n": 2}', id="taken"),
            parcel(b'"%b"' % (b"x" * 3000), id="3"),
            parcel(b"", id="4"),
            parcel(id="good"),
        )
        assert [verdict(each) for each in outcomes] == [Verdict.FAILED] * 5 + [Verdict.DONE]
        assert all(each.failure is Failure.REFUSED for each in outcomes[:5])
        assert "not JSON" in outcomes[0].detail
        assert await started(outside) == 2
        (inner,) = await deliver(outside, parcel(), to="inner")
        assert verdict(inner) is Verdict.FAILED


async def test_pipeline_endpoint_refuses_a_lone_surrogate_as_a_start_does(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_outside(store_server.address, tmp_path) as outside:
        data = rb'{"a": "\ud83d"}'
        (outcome,) = await deliver(outside, parcel(data))
        assert verdict(outcome) is Verdict.FAILED
        with pytest.raises(InvalidInputError) as told:
            read_orders(b'{"type": "a", "data": %b}' % data)
        assert outcome.detail == told.value.message
        assert outcome.detail.startswith("data.a has a lone surrogate")


async def test_a_pipeline_that_is_not_there_yet_is_tried_again(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_outside(store_server.address, tmp_path) as outside:
        (outcome,) = await deliver(outside, parcel(), to="later")
        assert verdict(outcome) is Verdict.RETRY
        assert "later" in outcome.detail
        await outside.define("later")
        (outcome,) = await deliver(outside, parcel(), to="later")
        assert outcome.succeeded


async def test_a_reply_that_was_lost_starts_nothing_twice(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """F-02, from inside."""
    async with (
        proxy_to(store_server.address) as proxy,
        open_outside(store_server.address, tmp_path, through=proxy.address) as outside,
    ):
        await outside.define("refund")
        assert (await deliver(outside, parcel(id="first")))[0].succeeded
        await proxy.set_fates(replies=Fate.SWALLOW)
        (lost,) = await deliver(outside, parcel(id="second"), timeout_seconds=0.3)
        assert lost.failure is Failure.TIMEOUT
        assert verdict(lost) is Verdict.RETRY
        await proxy.set_fates()
        proxy.cut()
        (again,) = await deliver(outside, parcel(id="second"))
        assert again.succeeded
        assert await started(outside) == 2


@pytest.mark.parametrize(
    "error", [BusyError("later"), LogFullError("full"), StoreUnavailableError("away")], ids=repr
)
@pytest.mark.parametrize("whole", [True, False], ids=["of the call", "of the order"])
async def test_what_has_no_room_now_is_tried_again(error: Exception, *, whole: bool) -> None:
    async def start_many(project: str, orders: Sequence[Order]) -> list[Result]:
        if whole:
            raise error
        return [error for _ in orders]  # type: ignore[misc]

    async with means_with(start_many=start_many) as means:
        endpoint = open_endpoint(subscription_to("pipeline:refund"), (), means)
        outcomes = await endpoint.send([parcel(id="1"), parcel(b"no", id="2"), parcel(id="3")])
    assert [each.failure for each in outcomes] == [Failure.BUSY, Failure.REFUSED, Failure.BUSY]
    assert verdict(outcomes[0]) is Verdict.RETRY
