"""The outbox and its deliverer: nothing lost, nothing settled twice, through all failures."""

from __future__ import annotations

import asyncio

import pytest
from standardwebhooks import Webhook

from tests.delivery.delivering import LANE, QUICK, delivering
from tests.helpers.store_faults import store_at
from tests.helpers.waiting import eventually
from waystation.delivery.endpoint import Endpoint
from waystation.delivery.outbox import Item, Outbox
from waystation.delivery.request import Outcome
from waystation.delivery.schedule import Decision, Verdict
from waystation.delivery.signing import Secret, new_secret
from waystation.delivery.states import DISABLED
from waystation.runtime.ids import RandomIds
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.testing import CrashPoint, crash_points
from waystation.testing.endpoint import Answer, FakeEndpoint


async def test_what_is_added_is_sent_once_and_recorded(store_server: EmbeddedServer) -> None:
    async with FakeEndpoint() as endpoint, delivering(store_server) as running:
        item = Item(url=endpoint.url, body=b'{"n": 1}')
        assert await running.outbox.add(LANE, "m-1", item)
        assert not await running.outbox.add(LANE, "m-1", item), "the same id is one thing"
        await running.until_empty()

        (got,) = endpoint.received
        assert got.body == b'{"n": 1}'
        (record,) = await running.outbox.records(LANE)
        assert (record.id, record.attempt, record.status, record.verdict) == ("m-1", 1, 200, "done")
        assert record.excerpt == b"ok"


async def test_failures_are_tried_again_with_the_same_id_until_success(
    store_server: EmbeddedServer,
) -> None:
    secret = new_secret(RandomIds())
    crm = Endpoint(name="crm", schedule=QUICK, secrets=(Secret(secret),))
    plan = [Answer(reset=True), 500, 200]
    async with FakeEndpoint(plan=plan) as endpoint, delivering(store_server, crm) as running:
        await running.outbox.add(LANE, "m-1", Item(url=endpoint.url, body=b"{}"))
        await running.until_empty()

        assert [each.headers["webhook-id"] for each in endpoint.received] == ["m-1"] * 3
        for each in endpoint.received:
            Webhook(secret).verify(each.body, each.headers)
        records = await running.outbox.records(LANE)
        assert [each.verdict for each in records] == ["retry", "retry", "done"]


async def test_the_last_failure_goes_to_the_failed_list_with_cause_and_notice_and_can_be_redriven(
    store_server: EmbeddedServer,
) -> None:
    plan = [503, 503, 503, 200]
    async with FakeEndpoint(plan=plan) as endpoint, delivering(store_server) as running:
        await running.outbox.add(LANE, "m-1", Item(url=endpoint.url))
        await running.until_empty()

        (failed,) = await running.outbox.failed(LANE)
        assert (failed.id, failed.attempts) == ("m-1", 3)
        assert failed.cause == "the endpoint answered 503"

        assert await running.outbox.redrive(LANE) == 1
        await running.until_empty()
        assert await running.outbox.failed(LANE) == []
        assert len(endpoint.received) == 4


async def test_nothing_is_sent_before_retry_after_has_passed(store_server: EmbeddedServer) -> None:
    """F-17"""
    plan = [Answer(429, headers=(("retry-after", "1"),)), 200]
    async with FakeEndpoint(plan=plan) as endpoint, delivering(store_server) as running:
        await running.outbox.add(LANE, "m-1", Item(url=endpoint.url))
        await running.until_empty()

        first, second = endpoint.received
        assert second.at - first.at >= 0.95


async def test_a_hanging_endpoint_does_not_hold_up_another(store_server: EmbeddedServer) -> None:
    hung = Endpoint(name="hung", schedule=QUICK, total_seconds_max=20)
    crm = Endpoint(name="crm", schedule=QUICK)
    async with (
        FakeEndpoint(plan=[Answer(hang=True)]) as black_hole,
        FakeEndpoint() as endpoint,
        delivering(store_server, hung, crm) as running,
    ):
        for number in range(50):
            item = Item(url=black_hole.url)
            await running.outbox.add("{unit}.out.hung", f"h-{number}", item)
        await black_hole.until(1)
        for number in range(200):
            await running.outbox.add(LANE, f"m-{number}", Item(url=endpoint.url))
        await running.until_empty()

        assert len(endpoint.received) == 200
        assert len(black_hole.received) <= 8


async def test_a_value_of_the_store_that_cannot_be_read_ends_no_deliveries_for_good(
    store_server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """F-19"""
    async with FakeEndpoint() as endpoint, delivering(store_server) as running:
        await running.store.call("HSET", DISABLED, "other", "junk")

        async def is_logged() -> bool:
            return "looking for lanes broke" in caplog.text

        await eventually(is_logged)
        await running.outbox.add(LANE, "m-1", Item(url=endpoint.url))
        await running.store.call("HDEL", DISABLED, "other")

        await running.until_empty()


async def test_two_deliverers_share_a_lane_without_sending_twice(
    store_server: EmbeddedServer,
) -> None:
    async with (
        FakeEndpoint() as endpoint,
        delivering(store_server) as first,
        delivering(store_server, flush=False),
    ):
        for number in range(300):
            await first.outbox.add(LANE, f"m-{number}", Item(url=endpoint.url))
        await first.until_empty()

        assert len(endpoint.received) == 300


@pytest.mark.parametrize("before", [0, 1])
async def test_stopping_gives_back_what_is_under_way_without_counting_it(
    store_server: EmbeddedServer, before: int
) -> None:
    """F-34, for the first request to a host, and for later ones, which begin without a task."""
    async with FakeEndpoint(plan=[200] * before + [Answer(hang=True), 200]) as endpoint:
        async with delivering(store_server) as running:
            for number in range(before):
                await running.outbox.add(LANE, f"b-{number}", Item(url=endpoint.url))
            await running.until_empty()
            await running.outbox.add(LANE, "m-1", Item(url=endpoint.url))
            await endpoint.until(before + 1)
        async with delivering(store_server, flush=False) as running:
            await running.until_empty()
            (record,) = await running.outbox.records(LANE, item_id="m-1")

        assert record.attempt == 1
        assert len(endpoint.received) == before + 2


async def test_stopping_leaves_nothing_claimed_that_was_being_claimed_just_then(
    store_server: EmbeddedServer,
) -> None:
    """F-34: a restart costs no delivery the length of a claim."""
    async with FakeEndpoint() as endpoint:
        async with delivering(store_server) as running:
            store, claiming = running.store, asyncio.Event()
            real = store.run

            def answer_late(script, keys, arguments):  # type: ignore[no-untyped-def]
                reply = real(script, keys, arguments)
                if script.name != "claim":
                    return reply

                async def late() -> object:
                    claimed = await reply
                    if len(claimed) > 5:
                        claiming.set()
                        await asyncio.sleep(0.2)
                    return claimed

                return asyncio.ensure_future(late())

            store.run = answer_late  # type: ignore[method-assign]
            await running.outbox.add(LANE, "m-1", Item(url=endpoint.url))
            await claiming.wait()
        async with store_at(store_server.address) as store:
            left = await Outbox(store).claim(LANE, most=9, claim_ms=1, token="next")

    assert len(endpoint.received) + len(left.items) == 1, "sent, or anybody's at once"


async def test_stopping_waits_for_settlements_that_are_being_written(
    store_server: EmbeddedServer,
) -> None:
    """F-34: what has arrived is not sent again because of a restart."""
    async with FakeEndpoint() as endpoint:
        async with delivering(store_server) as running:
            # From the second on they begin without a task.
            await running.outbox.add(LANE, "m-0", Item(url=endpoint.url))
            await running.until_empty()
            store, settling = running.store, asyncio.Event()
            real = store.run

            def write_late(script, keys, arguments):  # type: ignore[no-untyped-def]
                if script.name != "settle":
                    return real(script, keys, arguments)

                async def late() -> object:
                    settling.set()
                    await asyncio.sleep(0.5)
                    return await real(script, keys, arguments)

                return asyncio.ensure_future(late())

            store.run = write_late  # type: ignore[method-assign]
            await running.outbox.add(LANE, "m-1", Item(url=endpoint.url))
            await settling.wait()
        async with store_at(store_server.address) as store:
            assert await Outbox(store).waiting(LANE) == 0

    assert len(endpoint.received) == 2


async def test_a_claim_that_passed_to_another_settles_nothing(store_server: EmbeddedServer) -> None:
    store = Store(store_server.address)
    await store.call("FLUSHALL")
    outbox = Outbox(store)
    await outbox.add(LANE, "m-1", Item(url="http://127.0.0.1/"))
    (late,) = (await outbox.claim(LANE, most=1, claim_ms=1, token="first")).items
    await asyncio.sleep(0.01)
    (current,) = (await outbox.claim(LANE, most=1, claim_ms=60_000, token="second")).items

    done, reply = Decision(Verdict.DONE), Outcome(status=200)
    assert not await outbox.settle(LANE, late, done, reply, at_ms=0)
    assert await outbox.waiting(LANE) == 1
    assert await outbox.settle(LANE, current, done, reply, at_ms=0)
    assert await outbox.waiting(LANE) == 0
    assert len(await outbox.records(LANE)) == 1
    await store.close()


def test_a_death_at_any_store_call_loses_and_doubles_nothing(store_server: EmbeddedServer) -> None:
    done, reply = Decision(Verdict.DONE), Outcome(status=200)

    async def scenario(store: Store) -> None:
        outbox = Outbox(store)
        for number in range(2):
            await outbox.add(LANE, f"m-{number}", Item(url="http://x.example/"))
        claimed = (await outbox.claim(LANE, most=10, claim_ms=1, token="dying")).items
        await outbox.renew(LANE, claimed, claim_ms=1)
        retry = Decision(Verdict.RETRY, 0.0, "once")
        await outbox.settle(LANE, claimed[0], retry, Outcome(status=500), at_ms=0)
        await outbox.settle(LANE, claimed[1], done, reply, at_ms=0)

    async def after(store: Store, point: CrashPoint) -> None:
        outbox = Outbox(store)
        settled = {each.id for each in await outbox.records(LANE) if each.verdict == "done"}
        for number in range(2):
            if f"m-{number}" not in settled:
                item = Item(url="http://x.example/")
                await outbox.add(LANE, f"m-{number}", item)
        assert LANE in await outbox.lanes(), "a lane with something in it must be found"
        for attempt in range(50):
            token = f"next-{attempt}"
            claim = await outbox.claim(LANE, most=10, claim_ms=60_000, token=token)
            for each in claim.items:
                assert await outbox.settle(LANE, each, done, reply, at_ms=0)
            if claim.next_ms < 0 or not await outbox.waiting(LANE):
                break
            await asyncio.sleep(0.005)
        records = await outbox.records(LANE)
        ended = sorted(each.id for each in records if each.verdict == "done")
        assert ended == ["m-0", "m-1"], "each is done exactly once"
        assert await store.call("HLEN", f"{LANE}.items") == 0

    assert len(crash_points(store_server.address, scenario, after)) >= 27
