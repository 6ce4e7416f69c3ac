"""The outbox by itself: bounds, poison, redriving and discarding."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.delivery.delivering import LANE, delivering
from tests.helpers.store_faults import store_at
from tests.helpers.waiting import eventually
from waystation.delivery import outbox as outbox_module
from waystation.delivery.endpoint import Endpoint
from waystation.delivery.notices import Notice, latest_notices
from waystation.delivery.outbox import Item, Outbox
from waystation.delivery.request import Outcome
from waystation.delivery.schedule import Decision, Schedule, Verdict
from waystation.delivery.signing import Secret
from waystation.delivery.states import EndpointStates
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.telemetry import metrics
from waystation.testing import CrashPoint, crash_points
from waystation.testing.endpoint import FakeEndpoint

ITEM = Item(url="http://crm.example/")
FAILED = Decision(Verdict.FAILED, 0.0, "no")


@asynccontextmanager
async def empty_outbox(server: EmbeddedServer) -> AsyncIterator[Outbox]:
    async with store_at(server.address) as store:
        await store.call("FLUSHALL")
        yield Outbox(store)


async def give_up(outbox: Outbox, *ids: str) -> None:
    for each in ids:
        await outbox.add(LANE, each, ITEM)
    for claimed in (await outbox.claim(LANE, most=100, claim_ms=1000, token="t")).items:
        assert await outbox.settle(LANE, claimed, FAILED, Outcome(status=500), at_ms=0)


async def test_one_failed_item_or_all_can_be_redriven_or_discarded(
    store_server: EmbeddedServer,
) -> None:
    async with empty_outbox(store_server) as outbox:
        await give_up(outbox, "m-1", "m-2", "m-3", "m-4")

        assert await outbox.redrive(LANE, item_id="m-2") == 1
        assert await outbox.redrive(LANE, item_id="m-2") == 0, "it is not failed any more"
        assert await outbox.discard(LANE, item_id="m-3") == 1
        assert [each.id for each in await outbox.failed(LANE)] == ["m-1", "m-4"]
        assert await outbox.redrive(LANE) == 2
        claimed = (await outbox.claim(LANE, most=10, claim_ms=1000, token="u")).items
        assert sorted((each.id, each.attempt) for each in claimed) == [
            ("m-1", 1),
            ("m-2", 1),
            ("m-4", 1),
        ], "all attempts are before them again"
        assert await outbox.discard(LANE, waiting=True) == 3
        assert await outbox.store.call("EXISTS", f"{LANE}.items") == 0


async def test_what_was_discarded_while_it_was_under_way_is_not_settled(
    store_server: EmbeddedServer,
) -> None:
    async with empty_outbox(store_server) as outbox:
        await outbox.add(LANE, "m-1", ITEM)
        (claimed,) = (await outbox.claim(LANE, most=1, claim_ms=1000, token="t")).items
        await outbox.discard(LANE, waiting=True)

        assert not await outbox.settle(LANE, claimed, FAILED, Outcome(status=500), at_ms=0)
        assert await outbox.failed(LANE) == []


async def test_the_failed_list_keeps_the_newest(
    store_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "FAILED_MAX", 3)
    async with empty_outbox(store_server) as outbox:
        for number in range(5):
            await give_up(outbox, f"m-{number}")

        assert [each.id for each in await outbox.failed(LANE)] == ["m-2", "m-3", "m-4"]
        assert await outbox.counts([LANE]) == [(0, 3, 2)], "and what it cost is counted"
        assert await outbox.store.call("HLEN", f"{LANE}.items") == 3 * 3


async def test_a_claim_is_bounded_in_bytes_but_brings_at_least_one_item(
    store_server: EmbeddedServer,
) -> None:
    async with empty_outbox(store_server) as outbox:
        for number in range(8):
            await outbox.add(LANE, f"m-{number}", Item(url="http://x/", body=b"x" * 3_000_000))

        claim = await outbox.claim(LANE, most=64, claim_ms=60_000, token="t")

        assert 1 <= len(claim.items) <= 2
        assert claim.waiting == 8


async def test_outbox_claim_fresh_first_prefers_an_item_without_attempts(
    store_server: EmbeddedServer,
) -> None:
    again = Decision(Verdict.RETRY, 0.0, "no")
    async with empty_outbox(store_server) as outbox:
        for number in range(5):
            await outbox.add(LANE, f"old-{number}", ITEM)
        for claimed in (await outbox.claim(LANE, most=9, claim_ms=1000, token="t")).items:
            await outbox.settle(LANE, claimed, again, Outcome(status=500), at_ms=0)
        # Items that are due in the same millisecond are claimed in the order of their ids.
        await outbox.add(LANE, "untried", ITEM)

        async def claim(token: str, *, fresh_first: bool) -> str:
            found = await outbox.claim(
                LANE, most=1, claim_ms=60_000, token=token, fresh_first=fresh_first
            )
            return "".join(each.id for each in found.items)

        assert (await claim("u", fresh_first=False)).startswith("old")
        assert await claim("v", fresh_first=True) == "untried"
        assert (await claim("w", fresh_first=True)).startswith("old"), "nothing else is left"


async def test_an_item_that_cannot_be_read_is_given_up_and_does_not_stop_the_lane(
    store_server: EmbeddedServer,
) -> None:
    """F-19"""
    async with FakeEndpoint() as endpoint:
        async with empty_outbox(store_server) as outbox:
            await outbox.add(LANE, "m-1", Item(url=endpoint.url))
            await outbox.store.call("HSET", f"{LANE}.items", "m-1", b"\xc1junk")
            await outbox.add(LANE, "m-2", Item(url=endpoint.url))
        async with delivering(store_server, flush=False) as running:
            await running.until_empty()
            (failed,) = await running.outbox.failed(LANE)

        assert (failed.id, failed.cause) == ("m-1", "the item cannot be read")
        assert len(endpoint.received) == 1


async def test_an_item_that_no_request_can_be_made_of_is_given_up_in_the_end(
    store_server: EmbeddedServer,
) -> None:
    """F-18: poison ends after the maximum, and the breaker is not blamed for it."""
    broken = Endpoint(
        name="crm",
        schedule=Schedule(attempts=2, first_seconds=0.01, jitter=0),
        secrets=(Secret("whsec_!"),),
    )
    async with FakeEndpoint() as endpoint, delivering(store_server, broken) as running:
        await running.outbox.add(LANE, "m-1", Item(url=endpoint.url))
        await running.until_empty()

        (failed,) = await running.outbox.failed(LANE)
        assert (failed.attempts, failed.cause) == (2, "the request could not be made")
        assert endpoint.received == []


async def test_a_request_that_the_sender_breaks_on_is_given_up_in_the_end(
    store_server: EmbeddedServer,
) -> None:
    """As of a defect of ours: the claim is not held for ever, and its lane goes on."""
    schedule = Schedule(attempts=2, first_seconds=0.01, jitter=0)
    never = Endpoint(name="crm", schedule=schedule, total_seconds_max=1e300)  # No such number.
    async with FakeEndpoint() as endpoint, delivering(store_server, never) as running:
        for each in ("m-1", "m-2"):
            await running.outbox.add(LANE, each, Item(url=endpoint.url))
            await running.until_empty()

        failed = await running.outbox.failed(LANE)
        assert [each.id for each in failed] == ["m-1", "m-2"]
        assert {(each.attempts, each.cause) for each in failed} == {
            (2, "the request could not be made")
        }
        assert endpoint.received == []


async def test_every_attempt_is_recorded_with_time_status_duration_and_reply(
    store_server: EmbeddedServer,
) -> None:
    async with FakeEndpoint(plan=[500, 200]) as endpoint, delivering(store_server) as running:
        await running.outbox.add(LANE, "m-1", Item(url=endpoint.url))
        await running.until_empty()

        first, second = await running.outbox.records(LANE, item_id="m-1")
        assert [first.status, second.status] == [500, 200]
        assert [first.attempt, second.attempt] == [1, 2]
        assert first.excerpt == second.excerpt == b"ok"
        assert 0 < first.at_ms <= second.at_ms
        assert 0 < first.seconds < 10
        assert 0 < await running.store.call("TTL", f"{LANE}.attempts") <= 7 * 86_400
        assert await running.outbox.records(LANE, item_id="m-2") == []


async def test_a_settlement_waits_for_a_store_that_is_away_instead_of_sending_again(
    store_server: EmbeddedServer,
) -> None:
    async with FakeEndpoint() as endpoint, delivering(store_server) as running:
        store = running.store
        await running.outbox.add(LANE, "m-0", Item(url=endpoint.url))
        await running.until_empty()
        # Given a store that refuses all scripts from the moment that the receiver has answered
        real, refusals = store.run, []

        def refuse_settling(script, keys, arguments):  # type: ignore[no-untyped-def]
            if script.name == "settle" and len(refusals) < 2:
                refusals.append(script.name)
                raise outbox_module.StoreError("away")
            return real(script, keys, arguments)

        store.run = refuse_settling  # type: ignore[method-assign]
        await running.outbox.add(LANE, "m-1", Item(url=endpoint.url))
        await running.until_empty()

        assert len(refusals) == 2
        assert len(endpoint.received) == 2, "m-0 and m-1, each once"


async def test_two_redrives_at_once_during_live_traffic_send_nothing_twice(
    store_server: EmbeddedServer,
) -> None:
    """F-27"""
    failed = [f"f-{number}" for number in range(50)]
    async with FakeEndpoint() as endpoint:
        async with empty_outbox(store_server) as outbox:
            for each in failed:
                await outbox.add(LANE, each, Item(url=endpoint.url, body=each.encode()))
            for claimed in (await outbox.claim(LANE, most=64, claim_ms=1000, token="t")).items:
                await outbox.settle(LANE, claimed, FAILED, Outcome(status=500), at_ms=0)
        redriven, came = await redriven_in_traffic(store_server, endpoint)

    assert redriven == 50
    assert came == sorted([*failed, *(f"m-{number}" for number in range(50))])


async def redriven_in_traffic(
    server: EmbeddedServer, endpoint: FakeEndpoint
) -> tuple[int, list[str]]:
    """Redrives twice at once while items are added; how many, and all that came."""
    async with delivering(server, flush=False) as running:

        async def traffic() -> None:
            for number in range(50):
                item = Item(url=endpoint.url, body=f"m-{number}".encode())
                await running.outbox.add(LANE, f"m-{number}", item)

        first, second, _ = await asyncio.gather(
            running.outbox.redrive(LANE), running.outbox.redrive(LANE), traffic()
        )
        await running.until_empty()
    return first + second, sorted(each.body.decode() for each in endpoint.received)


def test_a_death_at_any_call_of_redriving_leaves_each_item_in_one_place(
    store_server: EmbeddedServer,
) -> None:
    async def prepare(store: Store) -> None:
        await give_up(Outbox(store), "m-1", "m-2")

    async def scenario(store: Store) -> None:
        await Outbox(store).redrive(LANE, item_id="m-1")
        await Outbox(store).redrive(LANE)

    async def after(store: Store, point: CrashPoint) -> None:
        outbox = Outbox(store)
        await outbox.redrive(LANE)
        assert await outbox.failed(LANE) == []
        due = await store.call("ZRANGE", f"{LANE}.due", 0, -1)
        assert sorted(due) == [b"m-1", b"m-2"]
        assert await store.call("HLEN", f"{LANE}.items") == 2

    crash_points(store_server.address, scenario, after, prepare=prepare)


def test_a_death_at_any_call_of_disabling_leaves_the_item_to_be_sent_again(
    store_server: EmbeddedServer,
) -> None:
    gone = Decision(Verdict.DISABLE, 0.0, "the endpoint answered 410")

    async def prepare(store: Store) -> None:
        await Outbox(store).add(LANE, "m-1", ITEM)

    async def scenario(store: Store) -> None:
        outbox = Outbox(store)
        (claimed,) = (await outbox.claim(LANE, most=1, claim_ms=1, token="t")).items
        notice = Notice(kind="disabled", endpoint="crm", lane=LANE, cause=gone.cause, at_ms=1)
        await EndpointStates(store).disable("crm", notice)
        await outbox.settle(LANE, claimed, gone, Outcome(status=410), at_ms=1)

    async def after(store: Store, point: CrashPoint) -> None:
        outbox = Outbox(store)
        assert await outbox.waiting(LANE) == 1
        settled = await outbox.records(LANE)
        disabled = (await EndpointStates(store).survey()).disabled
        assert disabled or not settled, "never settled without being disabled"
        assert len(await latest_notices(store, most=10)) == len(disabled)

    crash_points(store_server.address, scenario, after, prepare=prepare)


async def test_neither_causes_nor_records_nor_notices_tell_what_a_name_resolved_to(
    store_server: EmbeddedServer,
) -> None:
    """S-04"""
    async with FakeEndpoint() as gone:
        url = gone.url.replace("127.0.0.1", "localhost")
    async with delivering(store_server) as running:
        await running.outbox.add(LANE, "m-1", Item(url=url))
        await running.until_empty()

        (failed,) = await running.outbox.failed(LANE)
        told = [failed.cause, *map(str, await running.outbox.records(LANE))]

        async def notices() -> list[str]:
            return [str(each) for each in await latest_notices(running.store, most=9)]

        await eventually(notices)
        for text in (*told, *await notices()):
            assert "127.0.0.1" not in text
            assert "::1" not in text
        assert failed.cause == "the connection was refused or could not be made"


@pytest.mark.slow
async def test_the_store_s_waiting_count_reaches_the_metrics(store_server: EmbeddedServer) -> None:
    def waiting() -> float:
        return metrics.registry.get_sample_value("waystation_delivery_waiting") or 0.0

    before = waiting()
    async with delivering(store_server) as running:
        for number in range(3):
            await running.outbox.add(LANE, f"m-{number}", ITEM, wait_ms=60_000)

        async def is_counted() -> bool:
            return waiting() == before + 3

        await eventually(is_counted)
    assert waiting() == before, "a process that stopped counts nothing"
