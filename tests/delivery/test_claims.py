"""Claims are short, are renewed while an attempt is under way, and pass on when nobody does."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from tests.delivery.delivering import LANE, delivering
from tests.helpers.store_faults import store_at
from tests.helpers.waiting import eventually
from waystation.delivery.claims import Claims
from waystation.delivery.outbox import Claimed, Item, Outbox, encode_item
from waystation.delivery.request import Outcome
from waystation.delivery.schedule import Decision, Verdict
from waystation.errors import StoreError
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.testing.endpoint import Answer, FakeEndpoint

DONE = Decision(Verdict.DONE)


def refuse(store: Store, names: Sequence[str], *, times: int) -> list[str]:
    """Makes a store refuse scripts of these names so many times; returns what it refused."""
    real, refused = store.run, list[str]()

    def run(script: Any, keys: Any, arguments: Any) -> Any:
        if script.name in names and len(refused) < times:
            refused.append(script.name)
            raise StoreError("away")
        return real(script, keys, arguments)

    store.run = run  # type: ignore[method-assign]
    return refused


async def test_an_attempt_that_outlasts_its_claim_is_made_once(
    store_server: EmbeddedServer,
) -> None:
    plan = [Answer(delay_seconds=4)]
    async with (
        FakeEndpoint(plan=plan) as endpoint,
        delivering(store_server, claim_seconds=1.5) as first,
        delivering(store_server, flush=False, claim_seconds=1.5),
    ):
        for number in range(4):
            await first.outbox.add(LANE, f"m-{number}", Item(url=endpoint.url))
        await first.until_empty()

        assert len(endpoint.received) == 4, "each once, although claims are of 1.5 s"
        records = await first.outbox.records(LANE)
        assert [each.verdict for each in records] == ["done"] * 4


async def test_a_renewal_that_fails_is_made_again_before_the_claim_runs_out(
    store_server: EmbeddedServer,
) -> None:
    async with (
        FakeEndpoint(plan=[Answer(delay_seconds=4)]) as endpoint,
        delivering(store_server, claim_seconds=2) as first,
        delivering(store_server, flush=False, claim_seconds=2) as second,
    ):
        refused = [refuse(each.store, ["renew"], times=2) for each in (first, second)]
        await first.outbox.add(LANE, "m-1", Item(url=endpoint.url))
        await first.until_empty()

        assert ["renew", "renew"] in refused
        assert len(endpoint.received) == 1


async def test_only_claims_that_are_ours_are_renewed(store_server: EmbeddedServer) -> None:
    async with store_at(store_server.address) as store:
        await store.call("FLUSHALL")
        outbox = Outbox(store)
        for number in range(3):
            await outbox.add(LANE, f"m-{number}", Item(url="http://crm.example/"))
        mine, taken, settled = (
            await outbox.claim(LANE, most=3, claim_ms=60_000, token="mine")
        ).items
        # Given one that another has claimed since, and one that is settled
        await store.call("ZADD", f"{LANE}.due", 1, taken.id)
        await outbox.claim(LANE, most=1, claim_ms=60_000, token="another")
        await outbox.settle(LANE, settled, DONE, Outcome(status=200), at_ms=0)
        before = await store.call("ZSCORE", f"{LANE}.due", taken.id)

        lost = await outbox.renew(LANE, [mine, taken, settled], claim_ms=600_000)

        assert lost == [taken.id, settled.id]
        assert await store.call("ZSCORE", f"{LANE}.due", taken.id) == before
        assert await store.call("ZSCORE", f"{LANE}.due", settled.id) is None, "it does not return"
        assert int(await store.call("ZSCORE", f"{LANE}.due", mine.id)) > int(before) + 500_000


@pytest.mark.parametrize("before", [0, 1])
async def test_a_claim_that_ran_out_and_comes_to_us_again_belongs_to_the_attempt_under_way(
    store_server: EmbeddedServer, before: int
) -> None:
    """The store was away for longer than a claim, or stood still: nothing is sent twice."""
    plan = [Answer()] * before + [Answer(delay_seconds=2.5)]
    async with FakeEndpoint(plan=plan) as endpoint, delivering(store_server) as running:
        for number in range(before):  # The first request to a host takes another way.
            await running.outbox.add(LANE, f"b-{number}", Item(url=endpoint.url))
        await running.until_empty()
        await running.outbox.add(LANE, "m-1", Item(url=endpoint.url))
        await endpoint.until(before + 1)
        token = await running.store.call("HGET", f"{LANE}.items", "m-1.token")
        await running.store.call("ZADD", f"{LANE}.due", 1, "m-1")
        await running.store.call("PUBLISH", f"{LANE}.wake", "due")

        async def is_claimed_again() -> bool:
            return token != await running.store.call("HGET", f"{LANE}.items", "m-1.token")

        await eventually(is_claimed_again)
        await running.until_empty()

        assert len(endpoint.received) == before + 1
        records = await running.outbox.records(LANE, item_id="m-1")
        assert [each.verdict for each in records] == ["done"]


async def test_a_settlement_that_has_to_wait_longer_than_its_claim_is_made_in_the_end(
    store_server: EmbeddedServer,
) -> None:
    async with FakeEndpoint() as endpoint, delivering(store_server, claim_seconds=0.2) as running:
        refused = refuse(running.store, ["settle", "renew"], times=20)
        await running.outbox.add(LANE, "m-1", Item(url=endpoint.url))
        await running.until_empty()

        assert len(refused) == 20
        assert len(endpoint.received) == 1, "the claim ran out and came back, nothing was sent"


async def test_no_claim_is_held_once_all_is_settled(store_server: EmbeddedServer) -> None:
    async with store_at(store_server.address) as store:
        claims = Claims(Outbox(store), Clock())
        item = encode_item(Item(url="http://crm.example/"))
        first = claims.hold(LANE, Claimed("m-1", item, 1, "t"), 0.0)
        assert first is not None
        assert claims.hold(LANE, Claimed("m-1", item, 1, "u"), 0.0) is None, "it is under way"
        assert first.claimed.token == "u"
        # Given the next attempt of the same item, begun before the first was let go
        second = claims.hold(LANE, Claimed("m-1", item, 2, "v"), 0.0)
        assert second is not None

        claims.drop(first)
        assert repr(claims) == "<Claims [1 held]>"
        claims.drop(second)
        claims.drop(second)
        assert repr(claims) == "<Claims [0 held]>"


DELIVERER = """
import asyncio, sys
from tests.delivery.delivering import delivering
from waystation.store.address import Address

class Server:
    address = Address(path=sys.argv[1])

async def main():
    async with delivering(Server(), flush=False):
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_what_a_killed_process_had_under_way_is_sent_by_another_within_ten_seconds(
    store_server: EmbeddedServer,
) -> None:
    """F-03, and the death of a deliverer is not an attempt."""
    async with FakeEndpoint(plan=[Answer(hang=True), 200]) as endpoint:
        async with store_at(store_server.address) as store:
            await store.call("FLUSHALL")
            await Outbox(store).add(LANE, "m-1", Item(url=endpoint.url))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", DELIVERER, store_server.address.path
        )
        await endpoint.until(1)
        async with delivering(store_server, flush=False) as running:
            # Given one that has renewed its claim, so that the first length of it says nothing
            await asyncio.sleep(4)
            assert len(endpoint.received) == 1
            process.kill()
            await process.wait()
            loop = asyncio.get_running_loop()
            killed_at = loop.time()
            await running.until_empty()

            assert loop.time() - killed_at < 10.5
            (record,) = await running.outbox.records(LANE)
            assert (record.attempt, record.verdict) == (1, "done")
        assert [each.headers["webhook-id"] for each in endpoint.received] == ["m-1"] * 2
