"""Subscriptions: made, changed, paused, reset, deleted; the catalogue has the truth."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.subscriptions.shard_owner import own
from tests.subscriptions.subscription_bench import ENDPOINT, PROJECT, open_bench
from waystation.errors import (
    ConflictError,
    ForbiddenAddressError,
    InvalidInputError,
    TopicNotFoundError,
    TopicSubscribedError,
    WaystationError,
)
from waystation.store.embedded import EmbeddedServer
from waystation.subscription_errors import SubscriptionNotFoundError
from waystation.subscriptions.definition import RetryPolicy, Subscription, SubscriptionOptions
from waystation.subscriptions.log_entry import unpack_start
from waystation.subscriptions.reader import Reader
from waystation.subscriptions.shard_store import ShardStore
from waystation.topics.topic import TopicOptions


async def test_name_topic_and_endpoint_are_enough(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders", partitions=6)
        made = await bench.create()
        assert (made.state, made.version, made.incarnation) == ("active", 2, 1)
        assert (made.shards, made.generation, made.start) == (3, 0, "end")
        assert [each.partitions for each in (*made.retry, *made.dead)] == [3, 3]
        assert await bench.subscriptions.get(PROJECT, "crm") == made
        assert bench.subscriptions.known(PROJECT, "crm") == made


@pytest.mark.parametrize(
    ("partitions", "shards"), [(1, 1), (2, 2), (4, 4), (5, 1), (6, 3), (7, 1), (9, 3), (12, 4)]
)
async def test_it_has_the_largest_divisor_of_the_partitions_up_to_four_as_shards(
    store_server: EmbeddedServer, tmp_path: Path, partitions: int, shards: int
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders", partitions=partitions)
        assert (await bench.create()).shards == shards


async def test_a_topic_that_grew_counts_by_the_base_of_its_chain(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders", partitions=2)
        await bench.topics.add_storage_topic(PROJECT, "orders", 8)
        await bench.topics.switch_produce(PROJECT, "orders")
        assert (await bench.create("grown")).shards == 2
        # A chain of another base: no group keeps its shard over both, but for a single one.
        await bench.topics.add_storage_topic(PROJECT, "orders", 9)
        await bench.topics.switch_produce(PROJECT, "orders")
        assert (await bench.create("late")).shards == 3
        assert (await bench.create("whole", **{"from": "beginning"})).shards == 1


# -- Where it begins -------------------------------------------------------------------------


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
        (entry, *_) = await bench.logs.read(log, 0, 5, limit=1)
        later = [each for each in await bench.logs.read(log, 0, 0, limit=100) if each.ms > last_ms]
        assert entry.offset == 5
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


# -- Bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "code", "field"),
    [
        ({"endpoint": "pull:workers"}, "subscription.endpoint-invalid", "endpoint"),
        ({"endpoint": "ftp://crm.example/"}, "subscription.endpoint-invalid", "endpoint"),
        ({"endpoint": "pipeline:}{"}, "subscription.endpoint-invalid", "endpoint"),
        ({"endpoint": "channel:"}, "subscription.endpoint-invalid", "endpoint"),
        ({"endpoint": "https://u:p@crm.example/"}, "subscription.endpoint-invalid", "endpoint"),
        ({"endpoint": "http://10.0.0.1/hook"}, "endpoint.forbidden", "endpoint"),
        ({"endpoint": "http://[::ffff:10.0.0.1]/"}, "endpoint.forbidden", "endpoint"),
        ({"shards": 0}, "subscription.shards-invalid", "shards"),
        ({"shards": 1025}, "subscription.shards-invalid", "shards"),
        ({"options": {"grouped": True}}, "subscription.group-mismatch", "grouped"),
        ({"options": {"headers": [["host", "x"]]}}, "input.invalid", "headers"),
        ({"from": 2**52}, "input.invalid", "from"),
        ({"topic": "a}b"}, "input.invalid", "topic"),
    ],
    ids=str,
)
async def test_what_cannot_be_is_refused_by_field_and_nothing_is_written(
    store_server: EmbeddedServer, tmp_path: Path, asked: dict[str, Any], code: str, field: str
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders")
        before = await bench.keys()
        with pytest.raises(InvalidInputError) as caught:
            await bench.create(**asked)
        assert (caught.value.code, caught.value.field) == (code, field)
        assert await bench.subscriptions.list(PROJECT, limit=10) == []
        assert await bench.keys() == before


@pytest.mark.parametrize("name", ["", "{", "a}b", "a*", "a:b", "A", "x" * 64, "a b", "a.b"])
async def test_a_name_that_could_break_out_of_keys_is_refused(
    store_server: EmbeddedServer, tmp_path: Path, name: str
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders")
        for refused in (
            bench.create(name),
            bench.subscriptions.get(PROJECT, name),
            bench.subscriptions.pause(PROJECT, name),
            bench.subscriptions.delete(PROJECT, name),
        ):
            with pytest.raises(InvalidInputError):
                await refused


async def test_a_topic_that_is_not_there_cannot_be_subscribed_to(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        with pytest.raises(TopicNotFoundError):
            await bench.create()
        await bench.topics.create(PROJECT, "orders")
        await bench.topics.delete(PROJECT, "orders")
        with pytest.raises(TopicNotFoundError):
            await bench.create()


async def test_subscriptions_of_another_project_are_as_good_as_absent(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders")
        await bench.create()
        for absent in (
            bench.subscriptions.get("other", "crm"),
            bench.subscriptions.resume("other", "crm"),
            bench.subscriptions.reset("other", "crm", "end"),
            bench.subscriptions.delete("other", "crm"),
        ):
            with pytest.raises(SubscriptionNotFoundError):
                await absent
        assert await bench.subscriptions.list("other", limit=10) == []


# -- Changes ---------------------------------------------------------------------------------


async def test_of_two_who_create_a_subscription_one_does(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with (
        open_bench(store_server, tmp_path) as one,
        open_bench(store_server, tmp_path, empty=False) as other,
    ):
        topic = await one.topics.create(PROJECT, "orders")
        await one.produce(20)
        results = await asyncio.gather(
            one.create(endpoint=ENDPOINT),
            other.create(endpoint="channel:x"),
            return_exceptions=True,
        )
        errors = [each for each in results if isinstance(each, BaseException)]
        assert [type(each) for each in errors] == [ConflictError]
        (made,) = [each for each in results if isinstance(each, Subscription)]
        assert await other.subscriptions.get(PROJECT, "crm") == made
        assert await one.positions(made) == await one.ends(topic) == await one.holds(topic)


async def test_a_change_is_made_to_the_version_it_was_meant_for(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders")
        made = await bench.create()
        options = SubscriptionOptions(retry=RetryPolicy(attempts=1), poison="skip")
        change = bench.subscriptions.change
        changed = await change(PROJECT, "crm", options, version=made.version)
        assert (changed.version, changed.options) == (3, options)
        assert changed.endpoint == made.endpoint
        with pytest.raises(ConflictError, match="version 3"):
            await change(PROJECT, "crm", SubscriptionOptions(), version=made.version)
        moved = await change(PROJECT, "crm", options, version=3, endpoint="channel:crm")
        assert (moved.endpoint, moved.options, moved.version) == ("channel:crm", options, 4)
        assert await bench.subscriptions.get(PROJECT, "crm") == moved


@pytest.mark.parametrize(
    ("options", "endpoint", "kind"),
    [
        ({"grouped": True}, None, InvalidInputError),
        ({"headers": (("webhook-id", "1"),)}, None, InvalidInputError),
        ({}, "http://169.254.169.254/", ForbiddenAddressError),
        ({}, "pull:x", InvalidInputError),
    ],
)
async def test_a_change_is_checked_like_a_creation(
    store_server: EmbeddedServer,
    tmp_path: Path,
    options: dict[str, Any],
    endpoint: str | None,
    kind: type[WaystationError],
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders")
        made = await bench.create()
        asked = SubscriptionOptions(**options)
        with pytest.raises(kind):
            await bench.subscriptions.change(
                PROJECT, "crm", asked, version=made.version, endpoint=endpoint
            )
        assert await bench.subscriptions.get(PROJECT, "crm") == made


async def test_a_pause_has_an_end_and_a_reason(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders")
        made = await bench.create()
        now_ms = bench.clock.now_ms()
        paused = await bench.subscriptions.pause(
            PROJECT, "crm", until_ms=now_ms + 60_000, reason="the receiver moves"
        )
        assert paused.paused_reason == "the receiver moves"
        assert (paused.is_paused(now_ms), paused.is_paused(now_ms + 60_000)) == (True, False)
        endless = await bench.subscriptions.pause(PROJECT, "crm")
        assert endless.is_paused(now_ms + 10**12)
        resumed = await bench.subscriptions.resume(PROJECT, "crm")
        assert resumed == msgspec.structs.replace(made, version=resumed.version)
        assert await bench.subscriptions.resume(PROJECT, "crm") == resumed
        for bad in ({"until_ms": now_ms - 1}, {"reason": "x" * 501}):
            with pytest.raises(InvalidInputError):
                await bench.subscriptions.pause(PROJECT, "crm", **bad)  # type: ignore[arg-type]


async def test_nodes_are_told_of_every_change(store_server: EmbeddedServer, tmp_path: Path) -> None:
    async with (
        open_bench(store_server, tmp_path) as one,
        open_bench(store_server, tmp_path, empty=False) as other,
    ):
        await one.topics.create(PROJECT, "orders")
        await one.create()
        assert (await other.subscriptions.get(PROJECT, "crm")).version == 2
        await one.subscriptions.pause(PROJECT, "crm")
        assert (await other.subscriptions.get(PROJECT, "crm")).paused


async def test_a_page_is_full_however_many_were_deleted_before(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders", partitions=1)
        for n in range(5):
            await bench.create(f"s{n}", endpoint="channel:x")
        for n in range(2):
            await bench.subscriptions.delete(PROJECT, f"s{n}")
        page = await bench.subscriptions.list(PROJECT, limit=2)
        assert [each.name for each in page] == ["s2", "s3"]
        rest = await bench.subscriptions.list(PROJECT, after="s3", limit=2)
        assert [each.name for each in rest] == ["s4"]


# -- Reset -----------------------------------------------------------------------------------


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


# -- Deletion --------------------------------------------------------------------------------


async def test_a_deleted_subscription_leaves_its_record_log_and_its_numbers(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        topic = await bench.topics.create(PROJECT, "orders")
        made = await bench.create()
        await bench.subscriptions.delete(PROJECT, "crm")
        with pytest.raises(SubscriptionNotFoundError):
            await bench.subscriptions.get(PROJECT, "crm")
        with pytest.raises(SubscriptionNotFoundError):
            await bench.subscriptions.delete(PROJECT, "crm")
        assert await bench.holds(topic) == {}
        state = await bench.logs.state(made.record_log, 0)
        assert (state.end, state.sealed) == (1, 1)
        for key in await bench.keys("{s.default.crm.*"):
            kind = key.partition("}:")[2]
            assert kind.startswith("log") or kind in ("head", "lease")
            # What keeps late ones off goes by itself.
            assert kind.startswith("log") or 0 < await bench.store.call("PTTL", key) <= 3_600_000
        again = await bench.create()
        assert again.version > made.version
        assert (again.generation, again.incarnation) == (1, 2)
        assert [each.number for each in again.retry] == [1]
        assert await bench.positions(again) == await bench.ends(topic)


async def test_an_owner_of_a_deleted_shard_is_refused_and_cannot_hold_it_again(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders", partitions=1)
        made = await bench.create()
        await bench.store.call("HSET", made.place(0).lease, "epoch", 7, "until_ms", 10**15)
        await bench.subscriptions.delete(PROJECT, "crm")
        lease = await bench.store.call("HMGET", made.place(0).lease, "epoch", "until_ms")
        assert lease == [b"8", b"0"]
        # One who believes that it is still to be created comes too late.
        with pytest.raises(SubscriptionNotFoundError):
            await bench.subscriptions.lifecycle.finish_creation(
                msgspec.structs.replace(made, state="creating")
            )
        assert await bench.positions(made) == {}


async def test_a_removal_that_is_repeated_changes_nothing_more(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders", partitions=2)
        made = await bench.create()
        construction, found = bench.subscriptions.construction, []
        for _ in range(2):
            await construction.remove(made)
            keys = await bench.keys("{s.*")
            found.append({key: await bench.store.call("DUMP", key) for key in keys})
        assert found[0] == found[1]


async def test_a_topic_that_is_read_cannot_be_deleted(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders")
        await bench.topics.create(PROJECT, "other")
        await bench.create()
        with pytest.raises(TopicSubscribedError, match="crm") as caught:
            await bench.topics.delete(PROJECT, "orders")
        assert caught.value.code == "topic.subscribed"
        await bench.topics.delete(PROJECT, "other")
        await bench.subscriptions.delete(PROJECT, "crm")
        await bench.topics.delete(PROJECT, "orders")
        await bench.topics.purge(PROJECT, "orders")


async def test_a_subscription_that_came_while_its_topic_was_deleted_keeps_it_from_being_purged(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders")
        await bench.create()
        # As if it had not been there yet when the deletion looked.
        await bench.topics._book.change(PROJECT, "orders", lambda topic: topic.deleted())
        with pytest.raises(TopicSubscribedError):
            await bench.topics.purge(PROJECT, "orders")
        await bench.subscriptions.delete(PROJECT, "crm")
        await bench.topics.purge(PROJECT, "orders")


# -- Secrets ---------------------------------------------------------------------------------


async def test_requests_are_signed_by_a_secret_that_can_be_replaced(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders")
        made = await bench.create()
        (first,) = await bench.subscriptions.secrets(made)
        assert first.text.startswith("whsec_")
        text = await bench.subscriptions.rotate_secret(PROJECT, "crm")
        newest, older = await bench.subscriptions.secrets(made)
        assert (newest.text, newest.until_ms, older.text) == (text, 0, first.text)
        assert older.until_ms > bench.clock.now_ms()
        # Nodes see by the version that there is something to read again.
        assert (await bench.subscriptions.get(PROJECT, "crm")).version == made.version + 1
        for key in await bench.keys("{sub.*"):
            assert b"whsec_" not in b"".join(await bench.store.call("HVALS", key))


async def test_two_rotations_at_once_are_both_in_force_for_a_while(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with (
        open_bench(store_server, tmp_path) as one,
        open_bench(store_server, tmp_path, empty=False) as other,
    ):
        await one.topics.create(PROJECT, "orders")
        made = await one.create()
        (first,) = await one.subscriptions.secrets(made)
        texts = await asyncio.gather(
            one.subscriptions.rotate_secret(PROJECT, "crm"),
            other.subscriptions.rotate_secret(PROJECT, "crm"),
        )
        found = await one.subscriptions.secrets(made)
        assert {each.text for each in found} == {*texts, first.text}
        assert [each.until_ms == 0 for each in found] == [True, False, False]


async def test_one_that_is_created_anew_has_a_secret_of_its_own(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders")
        made = await bench.create()
        (first,) = await bench.subscriptions.secrets(made)
        await bench.subscriptions.delete(PROJECT, "crm")
        assert await bench.subscriptions.secrets(made) == ()
        (second,) = await bench.subscriptions.secrets(await bench.create())
        assert second.text != first.text


async def test_what_sends_no_requests_has_no_secret(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders")
        made = await bench.create(endpoint="pipeline:refund")
        assert await bench.subscriptions.secrets(made) == ()
        with pytest.raises(InvalidInputError):
            await bench.subscriptions.rotate_secret(PROJECT, "crm")
        moved = await bench.subscriptions.change(
            PROJECT, "crm", made.options, version=made.version, endpoint=ENDPOINT
        )
        assert len(await bench.subscriptions.secrets(moved)) == 1
