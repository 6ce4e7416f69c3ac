"""Resets of a subscription: all its shards, and what they hold."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.subscriptions.subscription_bench import PROJECT, open_bench
from waystation.errors import (
    ConflictError,
    InvalidInputError,
)
from waystation.store.embedded.server import EmbeddedServer


async def test_a_reset_moves_all_shards_and_what_is_held(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        topic = await bench.topics.create(PROJECT, "orders")
        await bench.produce(40)
        made = await bench.create()
        ends = await bench.ends(topic)
        back = await bench.subscriptions.reset(PROJECT, "crm", "beginning")
        zeros = dict.fromkeys(ends, 0)
        assert (back.incarnation, back.start) == (2, "beginning")
        assert await bench.positions(made) == zeros == await bench.holds(topic)
        again = await bench.subscriptions.reset(PROJECT, "crm", "end", version=back.version)
        assert again.incarnation == 3
        assert await bench.positions(made) == ends == await bench.holds(topic)
        with pytest.raises(ConflictError):
            await bench.subscriptions.reset(PROJECT, "crm", "beginning", version=back.version)
        assert await bench.positions(made) == ends


async def test_two_resets_at_once_leave_what_the_last_one_wants(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with (
        open_bench(store_server, tmp_path) as one,
        open_bench(store_server, tmp_path, empty=False) as other,
    ):
        topic = await one.topics.create(PROJECT, "orders")
        await one.produce(40)
        made = await one.create()
        await asyncio.gather(
            one.subscriptions.reset(PROJECT, "crm", "beginning"),
            other.subscriptions.reset(PROJECT, "crm", "end"),
        )
        last = await one.subscriptions.get(PROJECT, "crm")
        ends = await one.ends(topic)
        wanted = ends if last.start == "end" else dict.fromkeys(ends, 0)
        assert last.incarnation == 3
        assert await one.positions(made) == wanted == await one.holds(topic)


async def test_an_owner_that_moves_its_holds_up_during_a_rewind_undoes_nothing(
    store_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        topic = await bench.topics.create(PROJECT, "orders", partitions=1)
        await bench.produce(10)
        made = await bench.create()
        operating = bench.subscriptions.construction._operating
        reset = operating.reset

        async def late(*arguments: Any) -> bool:
            # It committed a moment ago, and knows nothing yet.
            await bench.logs.hold(topic.log(topic.target), 0, "sub.crm", 10, incarnation=1)
            return await reset(*arguments)

        monkeypatch.setattr(operating, "reset", late)
        await bench.subscriptions.reset(PROJECT, "crm", "beginning")
        assert await bench.positions(made) == {"0.0": 0} == await bench.holds(topic)
        # Nor does one that arrives when all is done, before there is another owner.
        await bench.logs.hold(topic.log(topic.target), 0, "sub.crm", 10, incarnation=1)
        assert await bench.holds(topic) == {"0.0": 0}
        await bench.logs.hold(topic.log(topic.target), 0, "sub.crm", 3, incarnation=2)
        assert await bench.holds(topic) == {"0.0": 3}


async def test_there_is_nothing_to_go_back_to_in_the_future(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders")
        made = await bench.create()
        with pytest.raises(InvalidInputError) as caught:
            await bench.subscriptions.reset(PROJECT, "crm", bench.clock.now_ms() + 3_600_000)
        assert (caught.value.code, caught.value.field) == ("subscription.reset-out-of-range", "to")
        assert await bench.subscriptions.get(PROJECT, "crm") == made
