"""Publishing: batches, duplicates, backlog limits, and the stored form of messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.channels.helpers import CLOCK_MAX, CLOCK_MIN, ChannelStore, open_channels
from tests.helpers.store_faults import Fate, proxy_to, store_at
from waystation.channels.model import EXPIRY_MARGIN_S, decode_message, encode_handle, encode_message
from waystation.channels.service import ChannelService
from waystation.config import Backlog, ChannelConfig, ChannelRule
from waystation.errors import ChannelFullError
from waystation.runtime.clock import Clock
from waystation.runtime.json_text import is_json, load_json
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.pubsub import PubSub


def batch(*ids: str) -> list[tuple[str, bytes]]:
    return [(each, f'"{each}"'.encode()) for each in ids]


async def test_publish_many_assigns_clocks_in_order(
    channel_store: ChannelStore,
) -> None:
    await channel_store.channels.subscribe("default", "ch", "me")
    await channel_store.channels.publish("default", "ch", "known", b"1")

    published = await channel_store.channels.publish_many(
        "default", "ch", [("c", b"1"), ("known", b"2"), ("a", b"3"), ("c", b"4")]
    )

    assert [(each.clock, each.duplicate) for each in published] == [
        (2, False),
        (1, True),
        (3, False),
        (2, True),
    ]
    fetched = await channel_store.channels.fetch("default", "ch", "me", limit=10)
    contents = [(each.id, bytes(each.content)) for each in fetched.messages]
    assert contents == [("known", b"1"), ("c", b"1"), ("a", b"3")]


async def test_publish_many_at_maximum_clock_wraps(channel_store: ChannelStore) -> None:
    await channel_store.set_clock("ch", CLOCK_MAX - 1)
    await channel_store.channels.subscribe("default", "ch", "me")

    published = await channel_store.channels.publish_many("default", "ch", batch("a", "b", "c"))

    assert [each.clock for each in published] == [CLOCK_MAX, CLOCK_MIN, CLOCK_MIN + 1]
    assert await channel_store.ids("ch", "me") == ["a", "b", "c"]


async def test_publish_many_writes_same_keys_as_publish(
    channel_store: ChannelStore,
) -> None:
    for each in batch("a", "b", "a"):
        await channel_store.channels.publish("default", "ch", *each)
    alone = {key: value for key, (value, _) in (await channel_store.keys()).items()}
    lives = [seconds for _, seconds in (await channel_store.keys()).values()]
    await channel_store.store.call("DEL", *alone)

    await channel_store.channels.publish_many("default", "ch", batch("a", "b", "a"))

    together = await channel_store.keys()
    assert {key: value for key, (value, _) in together.items()} == alone
    assert all(abs(life - lives[0]) < 10 for _, life in together.values())


async def test_publish_many_concurrently_does_not_interleave(channel_store: ChannelStore) -> None:
    batches = [batch(*(f"{name}-{n}" for n in range(50))) for name in "abcd"]

    done = await asyncio.gather(
        *(channel_store.channels.publish_many("default", "ch", each) for each in batches)
    )

    for published in done:
        clocks = [each.clock for each in published]
        assert clocks == list(range(clocks[0], clocks[0] + 50))
    assert sorted(published[0].clock for published in done) == [1, 51, 101, 151]


async def test_publish_many_wakes_poll_with_all_messages(
    channel_store: ChannelStore,
) -> None:
    await channel_store.channels.subscribe("default", "ch", "me")
    poll = asyncio.ensure_future(
        channel_store.channels.fetch("default", "ch", "me", limit=10, wait_s=30)
    )
    while not await channel_store.store.call("PUBSUB", "CHANNELS", "*ch*"):
        await asyncio.sleep(0.005)

    await channel_store.channels.publish_many("default", "ch", batch("a", "b", "c"))

    fetched = await asyncio.wait_for(poll, timeout=5)
    assert [each.id for each in fetched.messages] == ["a", "b", "c"]


async def test_publish_many_with_lost_reply_is_repeated_without_duplicates(
    store_server: EmbeddedServer,
) -> None:
    async with (
        store_at(store_server.address) as direct,
        proxy_to(store_server.address) as proxy,
        store_at(proxy.address) as store,
    ):
        await direct.call("FLUSHALL")
        channels = ChannelService(
            store, PubSub(store.address), clock=Clock(), settings=ChannelConfig()
        )
        await store.ping()
        await proxy.set_fates(replies=Fate.CUT)
        publishing = asyncio.ensure_future(
            channels.publish_many("default", "ch", batch("a", "b", "c"))
        )
        await asyncio.wait_for(proxy.met.wait(), timeout=5)
        assert await direct.call("GET", "c.{ch}.clock") == b"3", "the lost call did not run"
        await proxy.set_fates()

        published = await asyncio.wait_for(publishing, timeout=5)

        assert [each.clock for each in published] == [1, 2, 3]
        assert all(each.duplicate for each in published)
        assert await direct.call("GET", "c.{ch}.clock") == b"3"
        assert len(await direct.call("KEYS", "c.{ch}.m.*")) == 3


BOUND = 3
EXPIRE = 600


async def test_publish_uses_expiry_of_matching_rule(
    store_server: EmbeddedServer,
) -> None:
    rules = ChannelRule(pattern="short-.+", expire_seconds=60), ChannelRule(pattern="long")
    async with open_channels(store_server, expire_seconds=EXPIRE, rules=rules) as channel_store:
        for channel, seconds in (("short-1", 60), ("long", EXPIRE)):
            await channel_store.channels.publish("default", channel, "m", b"1")
            left = await channel_store.store.call("TTL", f"c.{{{channel}}}.m.1")
            assert seconds < left <= seconds + EXPIRY_MARGIN_S


@asynccontextmanager
async def bounded(
    server: EmbeddedServer, policy: Backlog, *, bound: int = BOUND, flush: bool = True
) -> AsyncIterator[ChannelStore]:
    """Open channels that store at most `bound` messages."""
    rule = ChannelRule(pattern=".+", backlog_max=bound, backlog_policy=policy)
    async with open_channels(
        server, expire_seconds=EXPIRE, rules=(rule,), flush=flush
    ) as channel_store:
        yield channel_store


async def publish(channel_store: ChannelStore, *ids: str) -> list[str]:
    """Publish messages one by one. Return the outcome of each."""
    outcomes = []
    for each in ids:
        try:
            published = await channel_store.channels.publish("default", "ch", each, b"1")
            outcomes.append("duplicate" if published.duplicate else "accepted")
        except ChannelFullError:
            outcomes.append("full")
    return outcomes


async def kept(channel_store: ChannelStore) -> list[int]:
    """Return the clocks of the stored messages in ascending order."""
    names = await channel_store.store.call("KEYS", "c.{ch}.m.*")
    return sorted(int(name.rpartition(b".")[2]) for name in names)


@pytest.mark.parametrize("start", [None, 0, CLOCK_MAX - 5, CLOCK_MAX - 1, CLOCK_MAX, CLOCK_MIN])
async def test_backlog_full_refuses_new_and_accepts_duplicate(
    store_server: EmbeddedServer, start: int | None
) -> None:
    async with bounded(store_server, "refuse") as channel_store:
        if start is not None:
            await channel_store.set_clock("ch", start)
        await channel_store.channels.subscribe("default", "ch", "me")

        outcomes = await publish(channel_store, "a", "b", "a", "c", "d", "a", "c")

        assert outcomes == [
            *("accepted", "accepted", "duplicate", "accepted", "full", "duplicate", "duplicate")
        ]
        assert await channel_store.ids("ch", "me") == ["a", "b", "c"]


@pytest.mark.parametrize("start", [None, 0, CLOCK_MAX - 5, CLOCK_MAX - 1, CLOCK_MAX, CLOCK_MIN])
async def test_backlog_with_drop_oldest_reports_lost_messages(
    store_server: EmbeddedServer, start: int | None
) -> None:
    async with bounded(store_server, "drop_oldest") as channel_store:
        if start is not None:
            await channel_store.set_clock("ch", start)
        await channel_store.channels.subscribe("default", "ch", "me")

        outcomes = await publish(channel_store, "a", "b", "c", "d", "e", "d", "a")

        # The id of a dropped message is still a duplicate until the id expires.
        assert outcomes == ["accepted"] * 5 + ["duplicate"] * 2
        fetched = await channel_store.channels.fetch("default", "ch", "me", limit=10)
        assert [each.id for each in fetched.messages] == ["c", "d", "e"]
        assert fetched.expired == 2
        assert len(await kept(channel_store)) == BOUND


@pytest.mark.parametrize("start", [0, CLOCK_MAX - 2])
async def test_full_backlog_accepts_messages_of_batch_that_fit_and_refuses_others(
    store_server: EmbeddedServer, start: int
) -> None:
    async with bounded(store_server, "refuse") as channel_store:
        await channel_store.set_clock("ch", start)
        await publish(channel_store, "a")
        messages = [(each, b"1") for each in ("b", "a", "c", "d", "b", "e", "d")]

        published = await channel_store.channels.publish_many("default", "ch", messages)

        told = ["full" if each.full else "known" if each.duplicate else "new" for each in published]
        assert told == ["new", "known", "new", "full", "known", "full", "full"]
        with pytest.raises(ChannelFullError) as raised:
            await channel_store.channels.publish_many("default", "ch", [("d", b"1"), ("e", b"1")])
        assert raised.value.code == "channel.full"
        # The ids of rejected messages are not stored, so a client can publish them again.
        assert await channel_store.store.call("EXISTS", "c.{ch}.mid.d", "c.{ch}.mid.e") == 0


@pytest.mark.parametrize("start", [0, CLOCK_MAX - 2, CLOCK_MAX - 4])
async def test_backlog_smaller_than_batch_stores_last_messages(
    store_server: EmbeddedServer, start: int
) -> None:
    async with bounded(store_server, "drop_oldest") as channel_store:
        await channel_store.set_clock("ch", start)
        await channel_store.channels.subscribe("default", "ch", "me")
        await publish(channel_store, "z")

        messages = [(f"m-{number}", b"1") for number in range(5)]
        await channel_store.channels.publish_many("default", "ch", messages)

        fetched = await channel_store.channels.fetch("default", "ch", "me", limit=10)
        assert [each.id for each in fetched.messages] == ["m-2", "m-3", "m-4"]
        assert fetched.expired == 3
        # The same batch consists of duplicates and drops no further messages.
        again = await channel_store.channels.publish_many("default", "ch", messages)
        assert all(each.duplicate for each in again)
        assert await channel_store.ids("ch", "me") == ["m-2", "m-3", "m-4"]


async def test_backlog_counts_acknowledged_messages(store_server: EmbeddedServer) -> None:
    async with bounded(store_server, "refuse") as channel_store:
        await channel_store.channels.subscribe("default", "ch", "me")
        await publish(channel_store, "a", "b", "c")
        await channel_store.channels.ack("default", "ch", "me", encode_handle("ch", "me", 3))

        assert await publish(channel_store, "d") == ["full"]

        await channel_store.machine.advance(EXPIRE + EXPIRY_MARGIN_S + 1)
        assert await publish(channel_store, "d", "e", "f", "g") == ["accepted"] * 3 + ["full"]


async def test_backlog_accepts_message_for_each_expired_one(
    store_server: EmbeddedServer,
) -> None:
    async with bounded(store_server, "refuse") as channel_store:
        await publish(channel_store, "a")
        await channel_store.machine.advance(EXPIRE / 2)
        await publish(channel_store, "b", "c")
        assert await publish(channel_store, "d") == ["full"]

        await channel_store.machine.advance(EXPIRE / 2 + EXPIRY_MARGIN_S + 1)

        assert await publish(channel_store, "d", "e") == ["accepted", "full"]


@pytest.mark.parametrize("policy", ["refuse", "drop_oldest"])
async def test_backlog_with_concurrent_publishers_never_exceeds_limit(
    store_server: EmbeddedServer, policy: Backlog
) -> None:
    async with bounded(store_server, policy, bound=50) as channel_store:
        names = [[f"{who}-{number}" for number in range(20)] for who in range(8)]

        outcomes = await asyncio.gather(*(publish(channel_store, *each) for each in names))

        accepted = sum(each.count("accepted") for each in outcomes)
        assert accepted == (50 if policy == "refuse" else 160)
        last = 50 if policy == "refuse" else 160
        assert await kept(channel_store) == list(range(last - 49, last + 1))


async def test_backlog_with_lowered_limit_drops_oldest(
    store_server: EmbeddedServer,
) -> None:
    async with bounded(store_server, "drop_oldest", bound=5000) as channel_store:
        for start in range(0, 3000, 1000):
            messages = [(f"m-{start + number}", b"1") for number in range(1000)]
            await channel_store.channels.publish_many("default", "ch", messages)

    # The limit of the same channel is reduced from 5000 to 10 messages.
    async with bounded(store_server, "drop_oldest", bound=10, flush=False) as channel_store:
        sizes = []
        for number in range(4):
            await publish(channel_store, f"new-{number}")
            clocks = await kept(channel_store)
            assert clocks == list(range(clocks[0], 3002 + number))
            sizes.append(len(clocks))

        # Each publish deletes a bounded number of the oldest messages, until ten are left.
        assert sizes == [2000, 1000, 10, 10]


async def test_backlog_with_deleted_message_accepts_new_one(
    store_server: EmbeddedServer,
) -> None:
    async with bounded(store_server, "refuse") as channel_store:
        await publish(channel_store, "a", "b", "c")
        await channel_store.store.call("DEL", "c.{ch}.m.1")
        assert await publish(channel_store, "d", "e") == ["accepted", "full"]


finite = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.parametrize(
    "content",
    [
        b"null",
        b"1",
        b"-0",
        b"1.0",
        b"1e400",
        b"[1e999]",
        b"12345678901234567890",
        b"1" * 5000,
        b'"x"',
        b'""',
        b'"\\ud83d\\ude00"',
        b'"\\ud83d"',
        b'"\\ud800"',
        b'"\\udc00x"',
        b'["\\ud83d",1e999]',
        b'[1e999,"\\ud800"]',
        b'"\\\\ud83d"',
        b'"\\ud83d\\ud83d\\ude00\\ude00"',
        b'{"\\uDfFf":"\\\\\\uD800"}',
        '"ä\u2028😀"'.encode(),
        b"[]",
        b"{}",
        b'{"a":1,"a":2}',
        b" \t\r\n[ 1 , 2 ]\n",
        b"[" * 900 + b"]" * 900,
    ],
    ids=lambda content: content[:20],
)
def test_message_of_any_json_is_returned_byte_for_byte(content: bytes) -> None:
    assert is_json(content)
    message = decode_message(encode_message("m1", content.strip(b" \t\r\n")))
    assert message is not None
    assert (message.id, bytes(message.content)) == ("m1", content.strip(b" \t\r\n"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b" ",
        b"{",
        b"}",
        b"1 2",
        b"01",
        b"1.",
        b"+1",
        b"NaN",
        b"[NaN]",
        b"-Infinity",
        b"[1e999,NaN]",
        b"'x'",
        b'"\x01"',
        b'"\\x"',
        b'"\\ud83"',
        b'"\\ud83g"',
        b'"\\ud83d',
        b'"\\ud83d\\"',
        b"\\ud83d",
        b'["\\ud83d",NaN]',
        b'["\\ud83d",]',
        b'"\\ud83d\xff"',
        b'"\xff"',
        b'[1e999,"\xff"]',
        b"\xef\xbb\xbf1",
        b"\x00",
        b"1\x00",
        b"\xff\xfe1\x00",
        b"[1,]",
        b'{"a":1,}',
        b"{a:1}",
        b"/**/1",
        b"True",
        b"nul",
        b"[" * 100_000 + b"]" * 100_000,
        b"[1e999," + b"[" * 100_000 + b"]" * 100_000 + b"]",
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    ],
    ids=lambda content: content[:20],
)
def test_message_that_is_not_json_is_rejected(content: bytes) -> None:
    assert not is_json(content)


def further_down(frames: int, work: Callable[[], object]) -> object:
    """Call `work` under `frames` further stack frames, so that less stack is free."""
    return further_down(frames - 1, work) if frames else work()


def test_message_decoded_on_deep_stack_is_returned() -> None:
    deepest = max(depth for depth in range(1, 2000) if is_json(b"[" * depth + b"]" * depth))
    content = b"[" * deepest + b"]" * deepest

    message = further_down(500, lambda: decode_message(encode_message("m1", content)))

    assert message is not None
    assert (message.id, bytes(message.content)) == ("m1", content)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b'{"id":"m1"}', b'{"content":1}', b'{"id":1,"content":1}', b'{"id":"m1"'],
)
def test_decode_message_of_stored_bytes_in_unknown_form_returns_none(body: bytes) -> None:
    assert decode_message(body) is None


@given(json_values)
def test_message_of_other_json_library_is_decoded(value: object) -> None:
    assert is_json(json.dumps(value).encode())
    assert is_json(json.dumps(value, ensure_ascii=False, indent=1).encode())


@given(st.text(st.characters(exclude_categories=())), st.binary(max_size=8))
def test_decode_message_of_any_string_bytes_returns_them(text: str, junk: bytes) -> None:
    escaped = json.dumps(text).encode()[:-1]
    junk = junk.translate(None, delete=bytes(range(0x20)) + b'"\\')
    content = b'%b%b"' % (escaped, junk)

    message = decode_message(encode_message("m1", content))

    assert message is not None
    assert bytes(message.content) == content
    assert load_json(content) == json.loads(content.decode(errors="replace"))
