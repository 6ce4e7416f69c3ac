"""A shard and its topic: switches, barriers, what was trimmed, what has no room, pauses."""

from __future__ import annotations

import asyncio

from tests.helpers.waiting import eventually
from tests.subscriptions.at_work import Hook, at_work
from waystation.logs import keys
from waystation.logs.protocol import Retention
from waystation.store.embedded.server import EmbeddedServer
from waystation.subscriptions.definition import RetryPolicy
from waystation.subscriptions.shard import Shard
from waystation.subscriptions.states import ShardState
from waystation.testing.endpoint import Answer, ReceivedRequest


async def until_state(shard: Shard, state: ShardState) -> None:
    async def there() -> bool:
        return shard.state is state

    await eventually(there)


async def test_a_switch_is_followed_after_all_before_it_was_acknowledged(
    store_server: EmbeddedServer,
) -> None:
    held = asyncio.Event()

    def decide(request: ReceivedRequest) -> int:
        first = request.headers["waystation-id"] == "a-00001"
        return 500 if first and not held.is_set() else 200

    hook = Hook(decide=decide)
    slow = RetryPolicy(attempts=50, first_seconds=0.1, max_seconds=0.1)
    async with hook, at_work(store_server, hook.url, retry=slow) as work:
        ids = await work.produce("a", "b")
        storage = work.add_storage(2)
        await work.logs.create(work.topic.log(storage), 2, Retention())
        ids += await work.produce("b", partition=1, number=1)
        shard = await work.start()
        await work.until_low(2)
        await work.produce("x")
        await work.until_low(3)
        assert hook.of("b") == [ids[1]], "the first one still takes messages"
        assert await work.hold_of(1, 1) in (None, 0)
        await work.logs.seal(work.topic.log_of(0), 0, 1)
        work.topic = work.topic.switched()
        ids += await work.produce("a", partition=0, number=1)
        await work.until_low(1, "1.1")
        await work.until_low(1, "1.0")
        assert hook.of("b") == [ids[1], ids[2]]
        assert hook.of("a", status=200) == [], "its group is retrying, over the switch too"
        held.set()
        await work.until_count("groups", 0)
        assert hook.of("a", status=200) == [ids[0], ids[3]]
        await work.stop(shard)
        assert [await work.hold_of(0), await work.hold_of(1, 0)] == [3, 1]
        # The next owner finds its way through what is finished.
        ids += await work.produce("c", partition=1, number=1)
        await work.start()
        await work.until_low(2, "1.1")
        assert hook.ids().count(ids[-1]) == 1


async def test_a_storage_topic_is_held_before_it_is_read(store_server: EmbeddedServer) -> None:
    async with Hook() as hook, at_work(store_server, hook.url) as work:
        storage = work.add_storage(2)
        await work.logs.create(work.topic.log(storage), 2, Retention())
        await work.produce("a", "b", partition=1, number=1)
        await work.start()

        async def is_held() -> bool:
            return await work.hold_of(1, 0) == 0 == await work.hold_of(1, 1)

        await eventually(is_held)


async def test_a_shard_stops_before_a_storage_topic_that_it_cannot_share(
    store_server: EmbeddedServer,
) -> None:
    """6 partitions, then 9: with three shards a group would have another one."""
    async with (
        Hook() as hook,
        at_work(store_server, hook.url, partitions=6, shards=3) as work,
    ):
        storage = work.add_storage(9)
        assert storage.factor == 1
        await work.logs.create(work.topic.log(storage), 9, Retention())
        await work.produce("a", partition=0)
        await work.produce("z", partition=0, number=1)
        for partition in range(6):
            await work.logs.seal(work.topic.log_of(0), partition, 1)
        work.topic = work.topic.switched()
        shard = await work.start()
        await until_state(shard, ShardState.AT_BARRIER)
        assert hook.ids() == ["a-00001"]


async def test_what_was_trimmed_under_it_is_passed_over_and_recorded(
    store_server: EmbeddedServer,
) -> None:
    async with Hook() as hook, at_work(store_server, hook.url) as work:
        await work.produce(*"abcdef")
        log = work.topic.log_of(0)
        small = Retention(max_bytes=1, policy="drop_and_count")
        while (await work.logs.trim(log, 0, small)).more:
            pass
        first = (await work.logs.state(log, 0)).first
        assert first > 0
        await work.logs.set_retention(log, 0, Retention())
        kept = await work.produce("g", "h")
        await work.start()
        await work.until_low(8)
        assert hook.ids()[-2:] == kept
        (fact,) = [fact for fact in await work.facts() if fact.kind == "trimmed"]
        assert (fact.was, fact.now) == ("m0.0.0", f"m0.0.{first}")


async def test_what_was_trimmed_while_its_body_was_let_go_of_is_passed_over_too(
    store_server: EmbeddedServer,
) -> None:
    released = asyncio.Event()

    def decide(request: ReceivedRequest) -> Answer:
        blocked = request.headers["waystation-group"] == "slow" and not released.is_set()
        return Answer(delay_seconds=1.0 if blocked else 0.0)

    hook = Hook(decide=decide)
    async with hook, at_work(store_server, hook.url, in_flight_messages=10) as work:
        await work.produce(*["slow"] * 30)
        others = await work.produce("x", "y")
        await work.start()

        async def others_came() -> bool:
            return set(others) <= set(hook.ids())

        await eventually(others_came)
        log = work.topic.log_of(0)
        small = Retention(max_bytes=1, policy="drop_and_count")
        while (await work.logs.trim(log, 0, small)).more:
            pass
        await work.logs.set_retention(log, 0, Retention())
        released.set()
        last = await work.produce("slow", "z")
        await work.until_low(34)
        assert set(last) <= set(hook.ids())
        assert "trimmed" in {fact.kind for fact in await work.facts()}
        assert await work.count("acks:0.0") == 0


async def test_the_hold_follows_what_is_acknowledged(store_server: EmbeddedServer) -> None:
    async with Hook() as hook, at_work(store_server, hook.url) as work:
        await work.produce(*[f"g{i}" for i in range(50)])
        await work.start()
        await work.until_low(50)

        async def is_moved() -> bool:
            return await work.hold_of() == 50

        await eventually(is_moved)


async def test_a_full_shard_reads_nothing_more_and_goes_on_when_there_is_room(
    store_server: EmbeddedServer,
) -> None:
    broken = True
    hook = Hook(decide=lambda _: 500 if broken else 200)
    slow = RetryPolicy(attempts=100, first_seconds=0.1, max_seconds=0.1, jitter=0)
    options = {"retry": slow, "retry_max_bytes": 2000, "in_flight_messages": 4}
    async with hook, at_work(store_server, hook.url, **options) as work:
        await work.produce(*[f"g{i}" for i in range(100)], data=b"x" * 500)
        shard = await work.start()
        await until_state(shard, ShardState.FULL)
        low = await work.low()
        assert 4 <= low <= 12, "what was in flight goes over, by its own size"
        broken = False
        # The endpoint may have been left alone by now.
        await work.machine.advance(10)
        await work.until_low(100)
        await work.until_count("groups", 0)


async def test_dead_letters_fill_a_shard_too(store_server: EmbeddedServer) -> None:
    hook = Hook(decide=lambda _: 403)
    options = {"dead_max_bytes": 1000, "in_flight_messages": 2}
    async with hook, at_work(store_server, hook.url, **options) as work:
        await work.produce(*[f"g{i}" for i in range(50)], data=b"x" * 300)
        shard = await work.start()
        await until_state(shard, ShardState.FULL)
        dead = await work.count("dead")
        assert dead < 50
        shard.use(work.change(dead_max_bytes=None))
        await work.until_count("dead", 50)


async def test_a_paused_one_reads_and_sends_nothing_until_it_is_resumed(
    store_server: EmbeddedServer,
) -> None:
    hook = Hook(decide=lambda r: 500 if len(hook.received) == 1 else 200)
    slow = RetryPolicy(attempts=9, first_seconds=1.0, max_seconds=1.0, jitter=0)
    async with hook, at_work(store_server, hook.url, retry=slow) as work:
        await work.produce("a")
        shard = await work.start()
        await work.until_count("due", 1)
        work.subscription = work.subscription.changed(paused=True)
        shard.use(work.subscription)
        assert shard.state is ShardState.PAUSED
        await work.produce("b")
        await work.machine.advance(5)
        assert shard._courier is not None
        shard._courier.pump()
        assert (shard.in_flight, shard._courier.head_room) == (0, 0)
        assert shard._feed is not None
        assert not shard._feed._may_read()
        assert len(hook.received) == 1
        work.subscription = work.subscription.changed(paused=False)
        shard.use(work.subscription)
        await work.until_low(2)
        await work.until_count("groups", 0)


async def test_a_pause_ends_by_itself_at_its_time(store_server: EmbeddedServer) -> None:
    async with Hook() as hook, at_work(store_server, hook.url) as work:
        until_ms = work.clock.now_ms() + 60_000
        work.subscription = work.subscription.changed(paused=True, paused_until_ms=until_ms)
        await work.produce("a")
        shard = await work.start()
        await work.machine.advance(50)
        assert shard.state is ShardState.PAUSED
        assert hook.received == []
        await work.machine.advance(11)
        await work.until_low(1)


async def test_a_topic_that_is_gone_is_told_and_may_come_back(store_server: EmbeddedServer) -> None:
    async with Hook() as hook, at_work(store_server, hook.url) as work:
        work.topic_is_there = False
        await work.produce("a")
        shard = await work.start()

        async def is_told() -> bool:
            return "no topic orders" in shard.problem

        await eventually(is_told)
        work.topic_is_there = True
        await work.until_low(1)
        assert shard.problem == ""
        assert len(hook.received) == 1


async def test_a_shard_without_partitions_has_nothing_to_do(store_server: EmbeddedServer) -> None:
    async with Hook() as hook, at_work(store_server, hook.url, partitions=1, shards=2) as work:
        shards = [await work.start(each) for each in range(2)]
        await work.produce("a", "b")
        await hook.until(2)
        assert [each.lost for each in shards] == ["", ""]


async def test_partitions_are_read_side_by_side(store_server: EmbeddedServer) -> None:
    async with Hook() as hook, at_work(store_server, hook.url, partitions=40) as work:
        for partition in range(40):
            await work.produce(f"p{partition}", partition=partition)
        await work.start()
        for partition in range(40):
            await work.until_low(1, f"0.{partition}")
        assert len(hook.received) == 40


async def test_shard_at_a_hole_delivers_the_rest_over_a_crash_and_records_the_range(
    store_server: EmbeddedServer,
) -> None:
    """The owner crashes before the message in front of the hole is done; the next one goes on."""
    released = asyncio.Event()

    def decide(request: ReceivedRequest) -> Answer:
        blocked = request.headers["waystation-group"] == "a" and not released.is_set()
        return Answer(delay_seconds=30.0 if blocked else 0.0)

    hook = Hook(decide=decide)
    async with hook, at_work(store_server, hook.url) as work:
        ids = await work.produce(*"abcdefgh")
        stream = keys.entries(work.topic.log_of(0), 0)
        for offset in (1, 2, 5):
            ((entry, _),) = await work.store.call("XRANGE", stream, offset, offset)
            await work.store.call("XDEL", stream, entry)
        shard = await work.start()
        await work.until_count("acks:0.0", 4)
        await work.kill(shard)
        released.set()
        await work.start()
        await work.until_low(8)
        delivered = {ids[offset] for offset in (0, 3, 4, 6, 7)}
        assert set(hook.ids()) == delivered
        facts = [fact for fact in await work.facts() if fact.kind == "damaged"]
        assert [(fact.was, fact.now) for fact in facts] == [
            ("m0.0.1", "m0.0.3"),
            ("m0.0.5", "m0.0.6"),
        ]
        later = await work.produce("i")
        await work.until_low(9)
        assert hook.ids()[-1:] == later
