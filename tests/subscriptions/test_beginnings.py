"""Where a subscription begins to read, and what it holds of its topic from then on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.subscriptions.shard_owner import own
from tests.subscriptions.subscription_bench import PROJECT, open_bench
from waystation.logs import keys
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.keys import FORMAT
from waystation.subscriptions.log_entry import unpack_start
from waystation.subscriptions.reader import Reader
from waystation.subscriptions.shard_store import ShardStore
from waystation.types.topic import TopicOptions


async def test_it_begins_at_the_end_and_holds_what_it_has_not_read(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        topic = await bench.topics.create(PROJECT, "orders")
        await bench.produce(40)
        made = await bench.create()
        ends = await bench.ends(topic)
        assert min(ends.values()) > 0
        assert await bench.positions(made) == ends == await bench.holds(topic)
        facts = await bench.facts(made)
        assert [(each.kind, each.was) for each in facts] == [("start", f"m0.0.{ends['0.0']}")]
        assert unpack_start(facts[0].detail or b"").topic == "orders"


async def test_it_begins_at_the_beginning_of_what_is_kept(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        options = TopicOptions(max_bytes=400, full_policy="drop_and_count")
        topic = await bench.topics.create(PROJECT, "orders", partitions=1, options=options)
        for n in range(30):
            await bench.produce(1, first=n)
        first = (await bench.logs.state(topic.log(topic.target), 0)).first
        assert first > 0
        made = await bench.create(**{"from": "beginning"})
        assert await bench.positions(made) == {"0.0": first} == await bench.holds(topic)


async def test_it_begins_at_a_time(store_server: EmbeddedServer, tmp_path: Path) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        topic = await bench.topics.create(PROJECT, "orders", partitions=1)
        await bench.produce(5)
        log = topic.log(topic.target)
        last_ms = (await bench.logs.state(log, 0)).last_ms
        while (await bench.logs.state(log, 0)).last_ms == last_ms:
            await bench.produce(1, first=5)
        assert (await bench.logs.read(log, 0, 5, limit=1)).offset == 5
        batch = await bench.logs.read(log, 0, 0, limit=100)
        later = [each for each in batch.entries() if each.ms > last_ms]
        made = await bench.create(**{"from": last_ms + 1})
        assert await bench.positions(made) == {"0.0": later[0].offset}
        early = await bench.create("early", **{"from": 1})
        assert await bench.positions(early) == {"0.0": 0}


async def test_it_does_not_read_older_storage_topics_unless_it_is_to_begin_there(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders", partitions=2)
        await bench.produce(20)
        await bench.topics.add_storage_topic(PROJECT, "orders", 4)
        topic = await bench.topics.switch_produce(PROJECT, "orders")
        await bench.produce(20, first=20)
        made = await bench.create()
        ends = await bench.ends(topic)
        assert await bench.positions(made) == {at: end for at, end in ends.items() if at[0] == "1"}
        assert made.first_storage == 1
        back = await bench.subscriptions.reset(PROJECT, "crm", "beginning")
        assert await bench.positions(made) == dict.fromkeys(ends, 0) == await bench.holds(topic)
        assert back.first_storage == 0
        ahead = await bench.subscriptions.reset(PROJECT, "crm", "end")
        assert await bench.positions(made) == ends == await bench.holds(topic)
        # What is in retry by then may be of groups that had another shard before.
        assert ahead.first_storage == 0
        whole = await bench.create("whole", **{"from": "beginning"})
        assert set((await bench.positions(whole)).values()) == {0}
        assert (await bench.positions(whole)).keys() == (await bench.ends(topic)).keys()


async def test_an_older_storage_topic_of_another_base_is_no_barrier_for_who_begins_behind_it(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async def nothing_is_passed(*_: object) -> None:
        raise AssertionError("all is there")

    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders", partitions=2)
        await bench.produce(5)
        await bench.topics.add_storage_topic(PROJECT, "orders", 3)
        await bench.topics.switch_produce(PROJECT, "orders")
        made = await bench.create()
        await bench.produce(9, first=5)
        read = []
        for shard in range(made.shards):
            owner = await own(bench, made, shard)
            opened = await ShardStore(bench.store).open(owner.place, owner.terms)
            reader = Reader(
                bench.logs,
                made,
                shard,
                opened,
                topic=bench.topics.get,
                pass_over=nothing_is_passed,
            )
            read += await reader.read()
        assert (made.shards, len(read)) == (3, 9)


async def test_a_builder_that_comes_second_leaves_the_hold_of_the_first(
    store_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        topic = await bench.topics.create(PROJECT, "orders", partitions=1)
        await bench.produce(10)
        shards = bench.subscriptions.construction._shards
        establish = shards.establish

        async def after_another(
            place: Any, terms: Any, start: dict[str, int], *, topic: str
        ) -> bool:
            # Who was first had looked at the end before there were so many.
            await establish(place, terms, dict.fromkeys(start, 4), topic=topic)
            return await establish(place, terms, start, topic=topic)

        monkeypatch.setattr(shards, "establish", after_another)
        made = await bench.create()
        assert await bench.positions(made) == {"0.0": 4} == await bench.holds(topic)


async def test_more_shards_than_partitions_are_fine_and_some_have_nothing(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        topic = await bench.topics.create(PROJECT, "orders", partitions=2)
        await bench.produce(10)
        made = await bench.create(shards=5)
        assert await bench.positions(made) == await bench.ends(topic)
        for shard in range(5):
            assert await bench.store.call("HGET", made.place(shard).key("head"), "incarnation")


async def test_a_storage_topic_is_held_before_anything_is_produced_to_it(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders", partitions=2)
        await bench.topics.add_storage_topic(PROJECT, "orders", 2)
        await bench.create()
        added = await bench.topics.add_storage_topic(PROJECT, "orders", 4)
        held = await bench.holds(added)
        assert (held["1.0"], held["1.1"], held.get("2.0")) == (0, 0, None)
        for _ in range(2):
            await bench.topics.switch_produce(PROJECT, "orders")
        assert {at: at_ for at, at_ in (await bench.holds(added)).items() if at[0] == "2"} == {
            f"2.{partition}": 0 for partition in range(4)
        }


async def test_who_finishes_a_switch_late_moves_no_hold_back(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders", partitions=1)
        await bench.create()
        before = await bench.topics.add_storage_topic(PROJECT, "orders", 1)
        await bench.topics.switch_produce(PROJECT, "orders")
        await bench.produce(5)
        await bench.logs.hold(before.log_of(1), 0, "sub.crm", 5, incarnation=1)
        await bench.topics.finish_switch(before)
        assert (await bench.holds(before))["1.0"] == 5


async def test_record_log_of_a_new_subscription_is_held_once_history_has_registered(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders", partitions=2)
        for reader in ("", "~history"):
            if reader:
                await bench.store.call("HSET", FORMAT, "history", reader)
            made = await bench.create(name=f"crm{len(reader)}")
            for shard in range(made.shards):
                holds = keys.holds(made.record_log, shard)
                found = await bench.store.call("HGETALL", holds)
                assert found == ([b"~history", b"0"] if reader else [])
