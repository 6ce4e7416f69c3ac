"""Acknowledged positions: any order ends in one low, and nothing is acknowledged twice."""

from __future__ import annotations

import asyncio
import itertools
import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.subscriptions.shard_slot import PLACE, main, open_shard_slot
from waystation.store.embedded.server import EmbeddedServer
from waystation.subscriptions.held import Settlement
from waystation.subscriptions.states import Verdict


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(order=st.permutations(range(12)), cuts=st.sets(st.integers(1, 11)))
def test_any_order_of_acks_ends_in_one_low(
    order: list[int], cuts: set[int], store_server: EmbeddedServer
) -> None:
    async def go() -> None:
        async with open_shard_slot(store_server) as slot:
            seen: set[int] = set()
            bounds = [0, *sorted(cuts), len(order)]
            for from_, to in itertools.pairwise(bounds):
                seen |= set(order[from_:to])
                await slot.commit(*(main(offset) for offset in order[from_:to]))
                low = next(each for each in range(13) if each not in seen)
                assert await slot.low() == low
                assert await slot.acks() == sorted(each for each in seen if each > low)
            assert "acks:0.0" not in await slot.slot()

    asyncio.run(go())


async def test_a_wide_gap_is_closed_by_the_one_that_was_missing(
    store_server: EmbeddedServer,
) -> None:
    """F-22: however many wait above it, no loop goes over them."""
    async with open_shard_slot(store_server) as slot:
        offsets = list(range(1, 10_001))
        random.Random(7).shuffle(offsets)
        for i in range(0, len(offsets), 100):
            await slot.commit(*(main(offset) for offset in offsets[i : i + 100]))
        assert await slot.low() == 0
        await slot.store.call("CONFIG", "RESETSTAT")
        await slot.one(main(0))
        told = (await slot.store.call("INFO", "commandstats")).decode()
        (line,) = [each for each in told.splitlines() if each.startswith("cmdstat_zrange:")]
        assert int(line.partition("calls=")[2].partition(",")[0]) < 40
        assert (await slot.low(), await slot.acks()) == (10_001, [])


async def test_partitions_are_acknowledged_apart(store_server: EmbeddedServer) -> None:
    async with open_shard_slot(store_server) as slot:
        items = [
            Settlement(member=member, group="", verdict=Verdict.DONE)
            for member in ("m0.0.0", "m0.1.0", "m3.1.0", "m3.1.2")
        ]
        await slot.commit(*items)
        assert await slot.hash("pos") == {"0.0": "1", "0.1": "1", "3.1": "1"}
        assert await slot.scores("acks:3.1") == {"2": 2}
        opened = await slot.shard.open(PLACE, slot.terms)
        assert opened.low == {"0.0": 1, "0.1": 1, "3.1": 1}
        assert opened.acks == {"0.0": [], "0.1": [], "3.1": [2]}


async def test_the_same_message_twice_in_one_commit_counts_once(
    store_server: EmbeddedServer,
) -> None:
    """F-25."""
    async with open_shard_slot(store_server) as slot:
        first, second = await slot.commit(main(0, verdict="again"), main(0, verdict="again"))
        assert (first.outcome, second.outcome) == ("done", "known")
        assert set(await slot.hash("retry")) == {"1"}


async def test_a_range_is_passed_over_once_and_joins_what_is_above_it(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        shard, terms = slot.shard, slot.terms
        await slot.commit(main(2), main(5), main(6), main(9))
        assert await shard.pass_over(PLACE, terms, "0.0", 0, 5, "trimmed")
        assert (await slot.low(), await slot.acks()) == (7, [9])
        fact = (await slot.facts())[-1]
        assert (fact.kind, fact.was, fact.now) == ("trimmed", "m0.0.0", "m0.0.5")
        before = await slot.everything()
        assert not await shard.pass_over(PLACE, terms, "0.0", 0, 5, "trimmed")
        assert not await shard.pass_over(PLACE, terms, "0.0", 7, 7, "trimmed")
        assert await slot.everything() == before
