"""The reader: bounded, in order, over partitions; and the window that it keeps."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.subscriptions.at_work import AtWork, at_work
from waystation.logs import keys as log_names
from waystation.store.embedded.server import EmbeddedServer
from waystation.subscriptions.held import Opened
from waystation.subscriptions.reader import Reader
from waystation.subscriptions.window import Waiting, Window


def reader_of(
    work: AtWork,
    low: dict[str, int] | None = None,
    acks: dict[str, list[int]] | None = None,
    *,
    passed: list[tuple[str, int, int, str]] | None = None,
) -> Reader:
    async def pass_over(*given: Any) -> None:
        if passed is not None:
            passed.append(given)

    opened = Opened(0, 0, 1, low or {}, acks or {}, 0, 0)
    return Reader(
        work.logs,
        work.subscription,
        0,
        opened,
        topic=work._topic,
        pass_over=pass_over,
    )


async def all_of(reader: Reader, *, most: int = 50) -> list[Waiting]:
    """Reads until nothing comes twice in a row."""
    found: list[Waiting] = []
    quiet = 0
    for _ in range(most):
        batch = await reader.read()
        found += batch
        quiet = 0 if batch else quiet + 1
        if quiet == 2:
            return found
    raise AssertionError("it does not end")


@given(st.integers(0, 5), st.permutations(range(12)), st.sets(st.integers(1, 11)))
def test_any_order_of_acknowledgements_ends_in_one_low(
    first: int, order: list[int], before: set[int]
) -> None:
    acks = {first + each for each in before}
    window = Window(0, 0, first, acks)
    for offset in range(first, first + 12):
        if offset not in acks:
            window.waiting[offset] = Waiting(window, offset, "", None, 1)
    done = set(acks)
    for each in order:
        offset = first + each
        window.acknowledge(offset)
        window.acknowledge(offset)
        done.add(offset)
        low = next(i for i in range(first, first + 13) if i not in done)
        assert window.low == low
    assert window.low == first + 12
    assert not window.acked


async def test_it_begins_at_low_and_passes_over_what_is_acknowledged(
    store_server: EmbeddedServer,
) -> None:
    async with at_work(store_server) as work:
        await work.produce(*"abcdefgh")
        reader = reader_of(work, {"0.0": 2}, {"0.0": [4, 5]})
        found = await all_of(reader)
        assert [each.offset for each in found] == [2, 3, 6, 7]
        assert [each.group for each in found] == list("cdgh")
        (window,) = reader._windows
        for each in found:
            reader.acknowledge(each)
        assert window.low == 8
        assert reader.outstanding == 0


async def test_what_joins_low_before_it_was_read_is_not_read_again(
    store_server: EmbeddedServer,
) -> None:
    """A former owner had acknowledged it: delivered again, it would come after what follows it."""
    async with at_work(store_server, in_flight_messages=2) as work:
        await work.produce(*"abcdefgh")
        reader = reader_of(work, {"0.0": 0}, {"0.0": [1, 2, 3, 5, 6]})
        batch = await reader.read()
        assert [each.offset for each in batch] == [0]
        # What is on its way while the first one ends, too.
        reading = asyncio.ensure_future(reader.read())
        await asyncio.sleep(0)
        reader.acknowledge(batch[0])
        (window,) = reader._windows
        assert (window.low, window.next) == (4, 4)
        found = await reading
        found += await all_of(reader)
        assert [each.offset for each in found] == [4, 7]
        for each in found:
            reader.acknowledge(each)
        assert (window.low, window.next, window.acked) == (8, 8, set())


async def test_it_stops_at_so_many_messages_and_goes_on_as_they_are_acknowledged(
    store_server: EmbeddedServer,
) -> None:
    async with at_work(store_server, in_flight_messages=10) as work:
        await work.produce(*["a"] * 50)
        reader = reader_of(work)
        waiting, seen = [], []
        rng = random.Random(3)
        while len(seen) < 50:
            while reader.has_room and (batch := await reader.read()):
                waiting += batch
                seen += [each.offset for each in batch]
                assert reader._bodies <= 10
            reader.acknowledge(waiting.pop(rng.randrange(len(waiting))))
        assert seen == list(range(50))


async def test_it_stops_at_so_many_bytes(store_server: EmbeddedServer) -> None:
    async with at_work(store_server, in_flight_bytes=1024) as work:
        await work.produce(*["a"] * 20, data=b"x" * 300)
        reader = reader_of(work)
        found = []
        while reader.has_room:
            found += await reader.read()
        assert len(found) <= 4
        for each in found:
            reader.acknowledge(each)
        assert reader.has_room
        assert reader._bytes == 0


async def test_a_message_that_is_larger_than_the_bound_is_read_all_the_same(
    store_server: EmbeddedServer,
) -> None:
    async with at_work(store_server, in_flight_bytes=1024) as work:
        await work.produce("a", data=b"x" * 5000)
        (each,) = await reader_of(work).read()
        assert each.envelope is not None
        assert len(each.envelope.data) == 5000


async def test_bodies_that_were_let_go_of_are_read_again(store_server: EmbeddedServer) -> None:
    async with at_work(store_server, in_flight_messages=10) as work:
        ids = await work.produce(*["a"] * 10)
        reader = reader_of(work)
        found = await reader.read()
        assert not reader.has_room
        reader.strip(reversed(found))
        assert [each.is_here for each in found] == [True] * 5 + [False] * 5
        assert reader.has_room
        message = await reader.body(found[7])
        assert message is not None
        assert message.id == ids[7]
        assert [each.is_here for each in found] == [True] * 5 + [False] * 2 + [True] * 3
        assert await reader.body(found[0]) is found[0].envelope
        for each in found:
            reader.acknowledge(each)
        assert (reader._bodies, reader._bytes) == (0, 0)


async def test_what_one_partition_lacks_keeps_no_other(store_server: EmbeddedServer) -> None:
    """An error with one is told when nothing else was read; what was read is never lost."""
    async with at_work(store_server, partitions=3) as work:
        for partition in range(3):
            await work.produce("a", "b", partition=partition)
        reader = reader_of(work)
        key = f"{{{work.topic.log_of(0)}.1}}:log"
        await work.store.call("RENAME", key, f"{key}.aside")
        await work.store.call("SET", key, "no stream")
        found = [(each.window.partition, each.offset) for each in await reader.read()]
        assert sorted(found) == [(0, 0), (0, 1), (2, 0), (2, 1)]
        await work.store.call("RENAME", f"{key}.aside", key)
        found = [(each.window.partition, each.offset) for each in await reader.read()]
        assert found == [(1, 0), (1, 1)]


async def test_the_hold_is_at_the_position_and_never_above(store_server: EmbeddedServer) -> None:
    async with at_work(store_server) as work:
        await work.produce(*"abc")
        reader = reader_of(work)
        found = await reader.read()
        await reader.hold()
        assert await work.hold_of() == 0
        reader.acknowledge(found[1])
        await reader.hold()
        assert await work.hold_of() == 0
        reader.acknowledge(found[0])
        await reader.hold()
        assert await work.hold_of() == 2


async def remove(work: AtWork, *offsets: int) -> None:
    """Remove messages from the stream of the topic, past its scripts: this makes a hole."""
    stream = log_names.entries(work.topic.log_of(0), 0)
    for offset in offsets:
        ((entry, _),) = await work.store.call("XRANGE", stream, offset, offset)
        assert await work.store.call("XDEL", stream, entry) == 1


async def test_reader_at_a_hole_passes_it_over_and_keeps_stored_offsets(
    store_server: EmbeddedServer,
) -> None:
    async with at_work(store_server) as work:
        ids = await work.produce(*"abcdefgh")
        await remove(work, 0, 3, 4, 7)
        passed: list[tuple[str, int, int, str]] = []
        reader = reader_of(work, passed=passed)
        found = await all_of(reader)
        assert {each.offset: each.envelope.id for each in found if each.envelope} == {
            offset: ids[offset] for offset in (1, 2, 5, 6)
        }
        # The range before the first message at once, the others when what is before them is done
        assert passed == [("0.0", 0, 1, "damaged")]
        for each in reversed(found):
            reader.acknowledge(each)
            await reader.read()
        assert passed[1:] == [("0.0", 3, 5, "damaged"), ("0.0", 7, 8, "damaged")]
        (window,) = reader._windows
        assert (window.low, window.next, window.holes) == (8, 8, [])


async def test_reader_of_a_message_removed_after_it_was_read_passes_over_it_alone(
    store_server: EmbeddedServer,
) -> None:
    """Its neighbour was removed, too, but its body is in memory: it is delivered."""
    async with at_work(store_server, in_flight_messages=4) as work:
        await work.produce(*"abcd")
        passed: list[tuple[str, int, int, str]] = []
        reader = reader_of(work, passed=passed)
        first, second, third, fourth = await reader.read()
        reader.strip([first, second])
        await remove(work, 0, 1, 2)
        assert await reader.body(first) is None
        reader.vanish(first)
        await reader.read()
        assert passed == [("0.0", 0, 1, "damaged")]
        assert await reader.body(second) is None
        reader.vanish(second)
        assert await reader.body(third) is not None
        await reader.read()
        assert passed[1:] == [("0.0", 1, 2, "damaged")]
        reader.acknowledge(third)
        reader.acknowledge(fourth)
        await reader.read()
        (window,) = reader._windows
        assert (window.low, passed[2:]) == (4, [])
