"""Producers of both clients: few requests, order, back-pressure, repetition, an end."""

from __future__ import annotations

import asyncio
import itertools
import signal
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable
from concurrent.futures import CancelledError as WithdrawnError
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.conftest import running_station
from tests.helpers.store_faults import Fate, Proxy, proxy_to
from waystation import AsyncWaystation, Waystation, errors
from waystation.client.messages import Answer
from waystation.client.parcels import NewMessage, Parcel, pack
from waystation.client.shipment import Shipment
from waystation.runtime.clock import Clock
from waystation.runtime.ids import CountingIds
from waystation.store.address import Address
from waystation.testing import Station


@asynccontextmanager
async def through_a_proxy(
    station: Station, **options: Any
) -> AsyncIterator[tuple[AsyncWaystation, Proxy, AsyncWaystation]]:
    """A client behind a proxy, the proxy, and a client that goes straight to topic `orders`."""
    port = int(station.url.rpartition(":")[2])
    async with (
        proxy_to(Address(host="127.0.0.1", port=port)) as proxy,
        AsyncWaystation(f"http://127.0.0.1:{proxy.address.port}") as client,
        AsyncWaystation(station.url) as direct,
    ):
        await direct.topics.create("orders", **options)
        yield client, proxy, direct


async def contents(client: AsyncWaystation, group: str) -> list[Any]:
    return [each.content async for each in client.topics.messages("orders", group=group)]


def requests(proxy: Proxy) -> int:
    return proxy.received.count(b"POST /v1/topics/orders/messages ")


async def soon(work: Awaitable[Any], seconds: float = 20) -> Any:
    return await asyncio.wait_for(work, seconds)


async def still_waits(work: asyncio.Future[Any]) -> bool:
    """Whether it has not gone on although everyone else had the chance to."""
    done, _ = await asyncio.wait({work}, timeout=0.1)
    return not done


# -- Batches -------------------------------------------------------------------------------


async def test_many_messages_take_few_requests_and_each_has_its_receipt(station: Station) -> None:
    async with through_a_proxy(station) as (client, proxy, direct):
        async with client.topics.producer("orders", linger=60, batch=100) as producer:
            sent = [await producer.send(n, id=f"m-{n}", group=f"g{n % 3}") for n in range(1000)]

        receipts = [each.result() for each in sent]

        assert requests(proxy) == 10
        assert [each.id for each in receipts] == [f"m-{n}" for n in range(1000)]
        for rest in range(3):
            assert await contents(direct, f"g{rest}") == list(range(rest, 1000, 3))


async def test_a_lonely_message_goes_when_it_has_lingered(station: Station) -> None:
    async with (
        through_a_proxy(station) as (client, _, _),
        client.topics.producer("orders", linger=0.01) as producer,
    ):
        assert (await soon(await producer.send(1))).offset == 0


async def test_large_messages_fill_a_batch_by_their_bytes(station: Station) -> None:
    async with through_a_proxy(station) as (client, proxy, direct):
        options: Any = {"linger": 60, "batch_bytes": 300_000}
        async with client.topics.producer("orders", **options) as producer:
            sent = [await producer.send("x" * 100_000, group="g") for _ in range(6)]
            # The second batch is full too; the last two messages linger.
            await soon(asyncio.gather(*sent[:4]))
            assert await still_waits(sent[4])

        assert requests(proxy) == 3
        assert len(await contents(direct, "g")) == 6


async def test_flush_sends_at_once_and_waits_for_every_receipt(station: Station) -> None:
    async with (
        through_a_proxy(station) as (client, _, _),
        client.topics.producer("orders", linger=60) as producer,
    ):
        sent = [await producer.send(n) for n in range(10)]
        assert await still_waits(sent[0])

        await soon(producer.flush())

        assert all(each.done() for each in sent)
        await soon(producer.flush())


# -- Back-pressure -------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [{"waiting": 10}, {"waiting_bytes": 1000}], ids=str)
async def test_send_waits_while_too_much_is_on_its_way(
    station: Station, bound: dict[str, int]
) -> None:
    sizes = [
        len(pack(NewMessage(n, group="g", id=f"{n:050}"), codec=None, identity=CountingIds()).body)
        for n in range(50)
    ]
    fitting = sum(total <= 1000 for total in itertools.accumulate(sizes))
    most = bound.get("waiting", fitting)
    async with through_a_proxy(station) as (client, proxy, direct):
        await proxy.set_fates(requests=Fate.HOLD)
        async with client.topics.producer("orders", linger=0, **bound) as producer:
            taken = 0

            async def send_all() -> None:
                nonlocal taken
                for number in range(50):
                    await producer.send(number, group="g", id=f"{number:050}")
                    taken += 1

            sending = asyncio.ensure_future(send_all())
            await soon(proxy.met.wait())
            assert await still_waits(sending)
            assert taken == most

            await proxy.set_fates()
            await soon(sending)

        assert await contents(direct, "g") == list(range(50))


async def test_a_message_larger_than_all_the_room_goes_alone(station: Station) -> None:
    async with through_a_proxy(station) as (client, _, direct):
        async with client.topics.producer("orders", linger=0, waiting_bytes=100) as producer:
            for size in (10, 5000, 10):
                await soon(producer.send(b"x" * size, group="g"))

        assert [len(each) for each in await contents(direct, "g")] == [10, 5000, 10]


async def test_those_who_wait_for_room_are_served_in_their_order(station: Station) -> None:
    """Also a small message that would fit waits behind a large one that came first."""
    async with through_a_proxy(station) as (client, proxy, direct):
        await proxy.set_fates(requests=Fate.HOLD)
        async with client.topics.producer("orders", linger=0, waiting_bytes=1000) as producer:
            sizes = [700, 900, 1, 900, 1, 1]
            sends = [asyncio.ensure_future(producer.send(b"x" * size, group="g")) for size in sizes]
            await soon(proxy.met.wait())
            assert await still_waits(sends[2])
            await proxy.set_fates()
            await soon(asyncio.gather(*sends))

        assert [len(each) for each in await contents(direct, "g")] == sizes


# -- Order and repetition ------------------------------------------------------------------


async def test_lost_requests_and_replies_leave_every_message_once_and_in_order(
    station: Station,
) -> None:
    """F-02, F-25: with deduplication, whatever the network does."""
    async with through_a_proxy(station, dedup_seconds=600) as (client, proxy, direct):
        async with client.topics.producer("orders", linger=0, batch=20) as producer:
            sent = []
            for number in range(400):
                if number % 80 == 40:
                    fate = {"replies": Fate.CUT} if number % 160 == 40 else {"requests": Fate.CUT}
                    await proxy.set_fates(**fate)
                    sent.append(await producer.send(number, group=f"g{number % 4}"))
                    await soon(proxy.met.wait())
                    await proxy.set_fates()
                else:
                    sent.append(await producer.send(number, group=f"g{number % 4}"))
            receipts = await soon(asyncio.gather(*sent), 40)

        assert any(each.duplicate for each in receipts), "a reply was lost"
        for group in range(4):
            assert await contents(direct, f"g{group}") == list(range(group, 400, 4))


async def test_without_deduplication_a_lost_reply_doubles_a_batch_and_loses_nothing(
    station: Station,
) -> None:
    async with through_a_proxy(station) as (client, proxy, direct):
        await proxy.set_fates(replies=Fate.CUT)
        async with client.topics.producer("orders", linger=0, batch=10) as producer:
            sent = [await producer.send(number, group="g") for number in range(30)]
            await soon(proxy.met.wait())
            await proxy.set_fates()
            await soon(asyncio.gather(*sent))

        found = await contents(direct, "g")
        assert list(dict.fromkeys(found)) == list(range(30)), "first ones are in their order"
        assert set(found) == set(range(30))


@pytest.mark.slow
async def test_a_station_that_dies_under_a_producer_and_comes_back_has_everything_once(
    tmp_path: Path,
) -> None:
    """F-02: the process is killed, not stopped."""
    with running_station(tmp_path, "dev", "--port", "0") as first:
        url = first["url"]
        async with AsyncWaystation(url) as client:
            await client.topics.create("orders", dedup_seconds=600)
            async with client.topics.producer("orders", linger=0, batch=10) as producer:
                sent = [await producer.send(n, group="g") for n in range(100)]
                await soon(sent[0])
                first["process"].send_signal(signal.SIGKILL)
                await asyncio.to_thread(first["process"].wait)
                sent += [await producer.send(n, group="g") for n in range(100, 200)]
                with running_station(tmp_path, "dev", "--port", url.rpartition(":")[2]):
                    receipts = await soon(asyncio.gather(*sent), 40)
                    found = await contents(client, "g")

    assert found == list(range(200))
    assert [each.offset for each in receipts] == list(range(200))


async def test_order_and_number_are_kept_while_the_topic_grows_and_switches(
    station: Station,
) -> None:
    async with through_a_proxy(station, partitions=2) as (client, _, direct):
        async with client.topics.producer("orders", linger=0, batch=7) as producer:
            sent = []
            for number in range(300):
                sent.append(await producer.send(number, group=f"g{number % 5}"))
                if number % 100 == 50:
                    await direct.topics.add_storage_topic("orders", 4 if number < 100 else 12)
                    await direct.topics.switch_produce("orders")
            receipts = await soon(asyncio.gather(*sent))

        assert {each.storage for each in receipts} == {0, 1, 2, 3}
        for group in range(5):
            assert await contents(direct, f"g{group}") == list(range(group, 300, 5))


async def test_a_message_that_cannot_be_accepted_is_told_and_holds_nobody_up(
    station: Station,
) -> None:
    schema = {"type": "integer"}
    async with through_a_proxy(station, json_schema=schema) as (client, _, direct):
        async with client.topics.producer("orders", linger=60) as producer:
            sent = [
                await producer.send("bad" if number % 10 == 5 else number, group="g")
                for number in range(30)
            ]
            await soon(producer.flush())

        kinds = [type(each.exception()).__name__ for each in sent]
        assert kinds == [
            "SchemaMismatchError" if number % 10 == 5 else "NoneType" for number in range(30)
        ]
        assert await contents(direct, "g") == [n for n in range(30) if n % 10 != 5]


async def test_a_topic_that_takes_nothing_is_told_for_every_message(station: Station) -> None:
    async with through_a_proxy(station) as (client, _, direct):
        await direct.topics.block("orders")
        async with client.topics.producer("orders", linger=60) as producer:
            sent = [await producer.send(number) for number in range(3)]
            await soon(producer.flush())
            assert [type(each.exception()) for each in sent] == [errors.TopicBlockedError] * 3

            await direct.topics.unblock("orders")
            again = await producer.send(4)
            await soon(producer.flush())
            assert again.result().offset == 0, "it goes on"


async def test_patience_has_an_end_that_is_told(station: Station) -> None:
    async with through_a_proxy(station) as (client, proxy, _):
        await proxy.set_fates(requests=Fate.CUT)
        async with client.topics.producer("orders", linger=0, patience=0.2) as producer:
            with pytest.raises(errors.StationUnreachableError):
                await soon(await producer.send(1))


async def test_over_a_limit_the_producer_slows_down_and_loses_nothing(station: Station) -> None:
    limit = {"mode": "enforced", "qps": 10}
    async with through_a_proxy(station, rate=limit) as (client, proxy, direct):
        async with client.topics.producer("orders", linger=0, batch=15) as producer:
            sent = [await producer.send(number, group="g") for number in range(45)]
            await soon(asyncio.gather(*sent))

        assert 3 < requests(proxy) < 15, "it was told to wait, and did"
        assert await contents(direct, "g") == list(range(45))


# -- What becomes of an answer, without a network ------------------------------------------


def shipment(count: int, patience: float = 10) -> tuple[Shipment, list[Parcel]]:
    identity = CountingIds()
    parcels = [pack(NewMessage(n), codec=None, identity=identity) for n in range(count)]
    return Shipment(parcels.copy(), patience=patience, clock=Clock()), parcels


def reply(status: int, content: object) -> Answer:
    return Answer(status, msgspec.json.encode(content))


def receipt(parcel: Parcel) -> dict[str, Any]:
    return {"id": parcel.id, "storage": 0, "partition": 0, "offset": 7}


@pytest.mark.parametrize("code", ["store.unavailable", "store.outcome-unknown", "busy"])
def test_of_a_partial_answer_only_what_is_open_is_sent_again_in_its_order(code: str) -> None:
    going, parcels = shipment(5)
    refusal = {"error": {"code": code, "detail": "Not now."}}
    results = [
        {"id": each.id, **refusal} if index in (1, 3) else receipt(each)
        for index, each in enumerate(parcels)
    ]

    going.answered(reply(200, {"results": results}))

    assert going.left == [parcels[1], parcels[3]]
    assert going.pause > 0
    going.answered(reply(200, {"results": [receipt(each) for each in going.left]}))
    assert going.left == []
    assert [getattr(each.result, "offset", None) for each in parcels] == [7] * 5


def test_a_full_partition_is_told_and_not_tried_again() -> None:
    going, parcels = shipment(2)
    full = {"id": parcels[0].id, "error": {"code": "log.full", "detail": "Full."}}

    going.answered(reply(200, {"results": [full, receipt(parcels[1])]}))

    assert going.left == []
    assert isinstance(parcels[0].result, errors.LogFullError)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, b"<html>login</html>"),
        Answer(502, b"<html>bad gateway</html>"),
        reply(200, {"results": []}),
        reply(503, {"code": "busy"}),
    ],
    ids=["not a station", "a proxy", "too few results", "busy"],
)
def test_an_answer_that_tells_nothing_of_the_messages_is_no_answer(answer: Answer) -> None:
    going, parcels = shipment(3)

    going.answered(answer)

    assert going.left == parcels
    assert going.pause > 0


def test_a_position_that_is_none_of_ours_ends_the_shipment_instead_of_going_round() -> None:
    going, parcels = shipment(2)

    going.answered(reply(400, {"code": "input.invalid", "errors": [{"field": "messages[9].id"}]}))

    assert going.left == []
    assert all(isinstance(each.result, errors.InvalidInputError) for each in parcels)


def test_an_error_without_a_position_is_about_the_message_that_went_alone() -> None:
    going, parcels = shipment(1)

    going.answered(reply(413, {"code": "input.too-large", "errors": [{"field": "body"}]}))

    assert (going.left, going.lost) == ([], None)
    assert isinstance(parcels[0].result, errors.TooLargeError)


def test_an_error_about_the_topic_is_not_about_the_message_that_went_alone() -> None:
    going, _ = shipment(1)

    going.answered(reply(422, {"code": "topic.blocked"}))

    assert isinstance(going.lost, errors.TopicBlockedError)


# -- The end -------------------------------------------------------------------------------


async def test_what_is_taken_back_before_it_was_sent_is_not_produced(station: Station) -> None:
    async with through_a_proxy(station) as (client, _, direct):
        async with client.topics.producer("orders", linger=60) as producer:
            sent = [await producer.send(number, group="g") for number in range(5)]
            sent[1].cancel()
            sent[3].cancel()
            await soon(producer.flush())

        assert await contents(direct, "g") == [0, 2, 4]


async def test_a_send_that_is_cancelled_leaves_nothing_behind_and_the_next_goes_on(
    station: Station,
) -> None:
    async with through_a_proxy(station) as (client, proxy, direct):
        await proxy.set_fates(requests=Fate.HOLD)
        async with client.topics.producer("orders", linger=0, waiting=1) as producer:
            first = await producer.send("first", group="g")
            sends = [asyncio.ensure_future(producer.send(n, group="g")) for n in range(3)]
            await soon(proxy.met.wait())
            sends[0].cancel()
            await proxy.set_fates()
            await soon(asyncio.gather(first, *sends[1:]))

        assert await contents(direct, "g") == ["first", 1, 2]


async def test_closing_sends_what_was_taken_and_takes_nothing_more(station: Station) -> None:
    async with through_a_proxy(station) as (client, _, _):
        producer = client.topics.producer("orders", linger=60)
        sent = [await producer.send(number, group="g") for number in range(3)]

        await soon(producer.aclose())
        await soon(producer.aclose())

        assert [each.result().offset for each in sent] == [0, 1, 2]
        with pytest.raises(errors.ProducerClosedError):
            await producer.send(4)


async def test_closing_that_is_interrupted_gives_up_and_tells_everyone(station: Station) -> None:
    async with through_a_proxy(station) as (client, proxy, _):
        await proxy.set_fates(requests=Fate.HOLD)
        producer = client.topics.producer("orders", linger=0, batch=2, waiting=3)
        sent = [await producer.send(number) for number in range(3)]
        waits = asyncio.ensure_future(producer.send(4))
        await soon(proxy.met.wait())
        closing = asyncio.ensure_future(producer.aclose())
        assert await still_waits(closing)

        closing.cancel()

        for each in (*sent, waits):
            with pytest.raises(errors.ProducerClosedError):
                await soon(each)
        await proxy.set_fates()


async def test_closing_the_client_closes_its_producers_first(station: Station) -> None:
    async with AsyncWaystation(station.url) as direct:
        await direct.topics.create("orders")
        async with AsyncWaystation(station.url) as client:
            sent = await client.topics.producer("orders", linger=60).send(1, group="g")

        assert sent.result().offset == 0
        assert await contents(direct, "g") == [1]


async def test_a_breakdown_inside_leaves_nobody_waiting(
    station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    async with through_a_proxy(station) as (client, _, _):
        monkeypatch.setattr(Shipment, "answered", broken)
        producer = client.topics.producer("orders", linger=0, batch=1)
        sent = [await producer.send(number) for number in range(3)]
        for each in sent:
            with pytest.raises(errors.WaystationError, match="broke down"):
                await soon(each)
        with pytest.raises(errors.WaystationError, match="broke down"):
            await producer.send(4)
        await soon(producer.aclose())


@pytest.mark.parametrize(
    "options",
    [
        {"batch": 0},
        {"batch": 1001},
        {"batch_bytes": 0},
        {"batch_bytes": 3_000_000},
        {"waiting": 0},
        {"linger": -1},
        {"patience": -1},
    ],
    ids=str,
)
def test_bounds_that_cannot_be_are_refused(station: Station, options: dict[str, Any]) -> None:
    with Waystation(station.url) as client, pytest.raises(errors.InvalidInputError):
        client.topics.producer("orders", **options)


# -- The ordinary one ----------------------------------------------------------------------


def test_the_ordinary_producer_serves_many_threads_each_in_its_order(station: Station) -> None:
    with Waystation(station.url) as client:
        client.topics.create("orders", partitions=2)
        receipts: dict[int, list[Any]] = defaultdict(list)
        with client.topics.producer("orders", batch=50, waiting=200) as producer:

            def send(thread: int) -> None:
                for number in range(200):
                    receipts[thread].append(producer.send(number, group=f"g{thread}"))

            threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
            producer.flush()

        for thread in range(4):
            found = client.topics.messages("orders", group=f"g{thread}")
            assert [each.content for each in found] == list(range(200))
            offsets = [each.result().offset for each in receipts[thread]]
            assert offsets == sorted(offsets)


def test_the_ordinary_producer_takes_back_tells_errors_and_ends(station: Station) -> None:
    with Waystation(station.url) as client:
        client.topics.create("orders", json_schema={"type": "integer"})
        producer = client.topics.producer("orders", linger=60)
        good, withdrawn, bad = (producer.send(each, group="g") for each in (1, 2, "three"))
        assert withdrawn.cancel()

        producer.close()

        assert good.result().offset == 0
        assert isinstance(bad.exception(), errors.SchemaMismatchError)
        with pytest.raises(WithdrawnError):
            withdrawn.result()
        with pytest.raises(errors.ProducerClosedError):
            producer.send(4)
        assert [each.content for each in client.topics.messages("orders", group="g")] == [1]


@pytest.mark.slow
def test_the_ordinary_producer_outlives_a_station_that_restarts(tmp_path: Path) -> None:
    """F-02: the process is killed, not stopped."""
    with (
        running_station(tmp_path, "dev", "--port", "0") as first,
        Waystation(first["url"]) as client,
    ):
        client.topics.create("orders", dedup_seconds=600)
        with client.topics.producer("orders", linger=0) as producer:
            sent = [producer.send(0, group="g")]
            sent[0].result(timeout=20)
            first["process"].send_signal(signal.SIGKILL)
            first["process"].wait()
            sent += [producer.send(number, group="g") for number in range(1, 50)]
            port = first["url"].rpartition(":")[2]
            with running_station(tmp_path, "dev", "--port", port):
                offsets = [each.result(timeout=40).offset for each in sent]
                found = [each.content for each in client.topics.messages("orders", group="g")]

    assert offsets == list(range(50))
    assert found == list(range(50))
