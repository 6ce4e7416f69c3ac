"""Channel streams: position ahead of the cursor, seeks, gaps, clock wrap, concurrent publishes."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.channels.helpers import CLOCK_MAX, CLOCK_MIN, ChannelStore, open_channels
from waystation.channels import reader as reader_module
from waystation.channels.model import encode_handle
from waystation.channels.reader import ChannelStream
from waystation.errors import SubscriberNotFoundError
from waystation.store.embedded.server import EmbeddedServer

CH = ("default", "ch")
#: Clocks at the start of a test: new channel, below zero, before the wrap, after the wrap.
STARTS = [0, -3, CLOCK_MAX - 4, CLOCK_MIN + 1]


async def publish(channel_store: ChannelStore, *ids: str) -> None:
    for each in ids:
        await channel_store.channels.publish(*CH, each, b"1")


async def ids(stream: ChannelStream, limit: int = 100) -> list[str]:
    return [message.id for _, message in (await stream.read(limit)).messages]


@pytest.mark.parametrize("start", STARTS)
async def test_stream_reads_ahead_of_acknowledgements(
    channel_store: ChannelStore, start: int
) -> None:
    await channel_store.set_clock("ch", start)
    await channel_store.channels.subscribe(*CH, "s")
    stream = channel_store.channels.stream(*CH, "s")
    names = [f"m{number}" for number in range(9)]
    await publish(channel_store, *names)

    first, rest = await stream.read(4), await stream.read(100)

    assert (first.more, rest.more) == (True, False)
    both = [*first.messages, *rest.messages]
    assert [message.id for _, message in both] == names
    for clock, message in both:
        assert await channel_store.text(f"c.{{ch}}.mid.{message.id}") == str(clock)
    assert await ids(stream) == []
    assert await channel_store.number("c.{ch}.r.s") == start
    # After an acknowledgement of five messages, a new stream starts at the sixth.
    await channel_store.channels.ack(*CH, "s", encode_handle("ch", "s", both[4][0]))
    assert await ids(stream) == []
    assert await ids(channel_store.channels.stream(*CH, "s")) == names[5:]


@pytest.mark.parametrize("start", STARTS)
async def test_stream_follows_seek_but_not_acknowledgement(
    channel_store: ChannelStore, start: int
) -> None:
    await channel_store.set_clock("ch", start)
    await channel_store.channels.subscribe(*CH, "s")
    stream = channel_store.channels.stream(*CH, "s")
    await publish(channel_store, "a", "b", "c", "d")
    read = (await stream.read(3)).messages
    await channel_store.channels.ack(*CH, "s", encode_handle("ch", "s", read[1][0]))
    assert await ids(stream) == ["d"]

    await channel_store.channels.seek(*CH, "s", "beginning", 0)
    assert await ids(stream) == ["a", "b", "c", "d"]
    await publish(channel_store, "e", "f")
    await channel_store.channels.seek(*CH, "s", "end", 0)
    assert await ids(stream) == []
    await publish(channel_store, "g")
    assert await ids(stream) == ["g"]


async def test_stream_position_out_of_range_starts_at_cursor(
    channel_store: ChannelStore,
) -> None:
    await channel_store.channels.subscribe(*CH, "s")
    await publish(channel_store, "a", "b", "c", "d")
    await channel_store.channels.ack(*CH, "s", encode_handle("ch", "s", 2))
    for after, expected in ((1, ["c", "d"]), (3, ["d"]), (4, []), (5, ["c", "d"])):
        assert await ids(channel_store.channels.stream(*CH, "s", after=after)) == expected


async def test_stream_read_ends_before_gap(channel_store: ChannelStore) -> None:
    await channel_store.channels.subscribe(*CH, "s")
    await publish(channel_store, *(f"m{number}" for number in range(1, 13)))
    for clock in (1, 2, 5, 6, 12):
        await channel_store.store.call("DEL", f"c.{{ch}}.m.{clock}")
    stream = channel_store.channels.stream(*CH, "s")

    reads = [await stream.read(100) for _ in range(4)]

    assert [[clock for clock, _ in read.messages] for read in reads] == [
        [3, 4],
        [7, 8, 9, 10, 11],
        [],
        [],
    ]
    assert [read.lost for read in reads] == [2, 2, 1, 0]
    assert [read.more for read in reads] == [True, True, False, False]
    # The stream has moved the cursor only over the gap before the first message.
    assert await channel_store.number("c.{ch}.r.s") == 2


async def test_stream_counts_unreadable_messages_as_lost(channel_store: ChannelStore) -> None:
    await channel_store.channels.subscribe(*CH, "s")
    await publish(channel_store, "a", "b", "c")
    await channel_store.store.call("SET", "c.{ch}.m.2", "{")

    read = await channel_store.channels.stream(*CH, "s").read(10)

    assert [(clock, message.id) for clock, message in read.messages] == [(1, "a"), (3, "c")]
    assert read.lost == 1


async def test_stream_read_ends_at_byte_limit(channel_store: ChannelStore) -> None:
    await channel_store.channels.subscribe(*CH, "s")
    for number in range(20):
        await channel_store.channels.publish(*CH, f"m{number}", b'"%b"' % (b"x" * 30_000))
    stream = channel_store.channels.stream(*CH, "s")
    sizes = []
    while (read := await stream.read(100)).messages:
        sizes.append(sum(len(message.content) for _, message in read.messages))
    assert sum(sizes) == 20 * 30_002
    assert max(sizes) < reader_module.STREAM_READ_BYTES_MAX + 30_100


async def test_stream_with_lost_clock_starts_again(channel_store: ChannelStore) -> None:
    await channel_store.set_clock("ch", 500)
    await channel_store.channels.subscribe(*CH, "s")
    stream = channel_store.channels.stream(*CH, "s")
    await publish(channel_store, "a")
    assert await ids(stream) == ["a"]
    await channel_store.store.call("DEL", "c.{ch}.clock")
    await publish(channel_store, "b")
    assert await ids(stream) == ["b"]


async def test_subscribe_with_after_continues_behind_that_clock(
    channel_store: ChannelStore,
) -> None:
    await publish(channel_store, "a", "b", "c")
    assert await channel_store.channels.subscribe(*CH, "s", after=1)
    assert await ids(channel_store.channels.stream(*CH, "s")) == ["b", "c"]
    # `after` has no effect on an existing subscriber.
    assert not await channel_store.channels.subscribe(*CH, "s", after=3)
    assert await channel_store.ids("ch", "s") == ["b", "c"]
    # If `after` is greater than the clock of the channel, the subscriber reads all messages.
    assert await channel_store.channels.subscribe(*CH, "t", after=9000)
    assert await ids(channel_store.channels.stream(*CH, "t")) == ["a", "b", "c"]


async def test_stream_of_missing_subscriber_raises_not_found(channel_store: ChannelStore) -> None:
    with pytest.raises(SubscriberNotFoundError):
        await channel_store.channels.stream(*CH, "s").read(1)


async def test_stream_never_misses_concurrent_publish(
    channel_store: ChannelStore,
) -> None:
    await channel_store.channels.subscribe(*CH, "s")
    names = [f"m{number}" for number in range(200)]
    got: list[str] = []

    async def follow() -> None:
        with channel_store.channels.stream(*CH, "s") as stream:
            while len(got) < len(names):
                read = await stream.next(3, wait_s=60)
                got.extend(message.id for _, message in read.messages)

    # The timeout is shorter than the interval of periodic reads, so that a lost wake-up fails.
    async with asyncio.timeout(8):
        following = asyncio.create_task(follow())
        for number, name in enumerate(names):
            await publish(channel_store, name)
            if number % 7 == 0:
                await asyncio.sleep(0.001 * (number % 5))
        await following
    assert got == names


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 6)),
        st.tuples(st.just("read"), st.integers(0, 5)),
        st.tuples(st.just("ack"), st.integers(0, 30)),
        st.tuples(st.just("lose"), st.integers(0, 30)),
    ),
    max_size=25,
)


@settings(max_examples=60)
@given(start=st.sampled_from(STARTS), steps=STEPS)
def test_stream_returns_stored_messages_once_and_in_order(
    store_server: EmbeddedServer, start: int, steps: list[tuple[str, int]]
) -> None:
    """Read a stream between random publishes, acknowledgements and deletions."""

    async def run() -> None:
        async with open_channels(store_server) as channel_store:
            await channel_store.set_clock("ch", start)
            await channel_store.channels.subscribe(*CH, "s")
            stream = channel_store.channels.stream(*CH, "s")
            clocks: dict[str, int] = {}
            gone: set[str] = set()
            got: list[str] = []
            lost = 0

            async def read(limit: int) -> bool:
                nonlocal lost
                found = await stream.read(limit)
                assert all(clocks[message.id] == clock for clock, message in found.messages)
                got.extend(message.id for _, message in found.messages)
                lost += found.lost
                return found.more

            for what, number in steps:
                if what == "publish":
                    for _ in range(number):
                        name = f"m{len(clocks)}"
                        clocks[name] = (await channel_store.channels.publish(*CH, name, b"1")).clock
                elif what == "read":
                    await read(number)
                elif what == "ack" and number < len(got):
                    handle = encode_handle("ch", "s", clocks[got[number]])
                    await channel_store.channels.ack(*CH, "s", handle)
                elif what == "lose" and (name := f"m{number}") in clocks:
                    await channel_store.store.call("DEL", f"c.{{ch}}.m.{clocks[name]}")
                    gone |= {name} - set(got)
            while await read(5):
                pass
            assert got == [name for name in clocks if name not in gone]
            assert lost == len(gone)

    asyncio.run(run())
