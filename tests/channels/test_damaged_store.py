"""Keys of invalid type or value: every verb reports `store.damaged` and writes nothing.

Another program can write to the store, and a restored backup can be incomplete. A damaged key must
not stop other channels, and the error must name it, so that an operator can repair it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.channels.helpers import ChannelStore, open_channels
from waystation.channels.model import encode_handle
from waystation.channels.queries import ChannelQueries
from waystation.config import ChannelRule
from waystation.errors import StoreDamagedError
from waystation.store.embedded.server import EmbeddedServer

CLOCK, CURSOR, SECOND_MESSAGE, ENTRY = "c.{ch}.clock", "c.{ch}.r.me", "c.{ch}.m.2", "c.{ch}.mid.new"

Verb = Callable[[ChannelStore], Awaitable[object]]

READS: dict[str, Verb] = {
    "fetch": lambda channel_store: channel_store.channels.fetch("default", "ch", "me", limit=10),
    "poll": lambda channel_store: channel_store.channels.fetch(
        "default", "ch", "me", limit=10, wait_s=5
    ),
    "stream": lambda channel_store: channel_store.channels.stream("default", "ch", "me").read(10),
}
PUBLISHES: dict[str, Verb] = {
    "publish": lambda channel_store: channel_store.channels.publish("default", "ch", "new", b"1"),
    "publish_many": lambda channel_store: channel_store.channels.publish_many(
        "default", "ch", [("new", b"1")]
    ),
}
MOVES: dict[str, Verb] = {
    "ack": lambda channel_store: channel_store.channels.ack(
        "default", "ch", "me", encode_handle("ch", "me", 1)
    ),
    "seek": lambda channel_store: channel_store.channels.seek("default", "ch", "me", "beginning"),
    "subscribe": lambda channel_store: channel_store.channels.subscribe("default", "ch", "me"),
    "list_subscribers": lambda channel_store: ChannelQueries(channel_store.store).subscribers(
        "default", "ch", limit=10
    ),
}
LIST_CHANNELS: dict[str, Verb] = {
    "list_channels": lambda channel_store: ChannelQueries(channel_store.store).channels(
        "default", limit=10
    ),
}
VERBS = READS | PUBLISHES | MOVES | LIST_CHANNELS
DAMAGES: dict[str, tuple[str, ...]] = {
    "fraction": ("SET", "1.5"),
    "text": ("SET", "soon"),
    "empty": ("SET", ""),
    "hexadecimal": ("SET", "0x10"),
    "30_digits": ("SET", "9" * 30),
    "above_range": ("SET", "9007199254740992"),
    "below_range": ("SET", "-9007199254740992"),
    "list": ("RPUSH", "1"),
}


async def damage(channel_store: ChannelStore, key: str, kind: str) -> None:
    command, value = DAMAGES[kind]
    await channel_store.store.call("DEL", key)
    await channel_store.store.call(command, key, value)
    await channel_store.store.call("EXPIRE", key, 1000)


async def dump(channel_store: ChannelStore) -> dict[bytes, tuple[bytes, int]]:
    """Return the content of all keys and the time at which each expires."""
    names = sorted(await channel_store.store.call("KEYS", "*"))
    return {
        name: (
            await channel_store.store.call("DUMP", name),
            await channel_store.store.call("PEXPIRETIME", name),
        )
        for name in names
    }


async def fill(channel_store: ChannelStore) -> None:
    for channel in ("ch", "other"):
        await channel_store.channels.subscribe("default", channel, "me")
        for number in range(3):
            await channel_store.channels.publish("default", channel, f"m-{number}", b"1")


async def assert_damaged(channel_store: ChannelStore, key: str, verb: Verb) -> None:
    """Assert that the verb names the damaged key, and that it changes no key."""
    before = await dump(channel_store)
    with pytest.raises(StoreDamagedError) as raised:
        await verb(channel_store)
    assert raised.value.code == "store.damaged"
    assert raised.value.key == key
    assert f"DEL {key}" in raised.value.hint
    assert await dump(channel_store) == before


async def assert_works(channel_store: ChannelStore, channel: str) -> None:
    assert not (await channel_store.channels.publish("default", channel, "later", b"1")).duplicate
    fetched = await channel_store.channels.fetch("default", channel, "me", limit=10)
    assert fetched.messages[-1].id == "later"


@pytest.mark.parametrize("kind", DAMAGES)
async def test_every_channel_operation_reports_damaged_clock(
    channel_store: ChannelStore, kind: str
) -> None:
    await fill(channel_store)
    await damage(channel_store, CLOCK, kind)

    for verb in VERBS.values():
        await assert_damaged(channel_store, CLOCK, verb)
    await assert_works(channel_store, "other")


@pytest.mark.parametrize("kind", DAMAGES)
async def test_damaged_cursor_is_reported_by_all_operations_of_its_subscriber(
    channel_store: ChannelStore, kind: str
) -> None:
    await fill(channel_store)
    await channel_store.channels.subscribe("default", "ch", "healthy")
    await damage(channel_store, CURSOR, kind)

    for verb in (READS | MOVES).values():
        await assert_damaged(channel_store, CURSOR, verb)
    await channel_store.channels.publish("default", "ch", "new", b"1")
    assert await channel_store.ids("ch", "healthy") == ["new"]
    # An operator can repair the cursor without access to the store.
    assert await channel_store.channels.unsubscribe("default", "ch", "me")
    assert await channel_store.channels.subscribe("default", "ch", "me")


@pytest.mark.parametrize("verb", READS)
async def test_message_key_of_another_type_is_reported_until_it_is_deleted(
    channel_store: ChannelStore, verb: str
) -> None:
    await fill(channel_store)
    await damage(channel_store, SECOND_MESSAGE, "list")

    await assert_damaged(channel_store, SECOND_MESSAGE, READS[verb])
    await assert_works(channel_store, "other")
    await channel_store.store.call("DEL", SECOND_MESSAGE)
    fetched = await channel_store.channels.fetch("default", "ch", "me", limit=10)
    assert [message.id for message in fetched.messages] == ["m-0", "m-2"]
    assert fetched.expired == 1


async def test_message_key_of_another_type_behind_a_gap_moves_no_cursor(
    channel_store: ChannelStore,
) -> None:
    await fill(channel_store)
    await channel_store.store.call("DEL", "c.{ch}.m.1")
    await damage(channel_store, SECOND_MESSAGE, "list")

    for verb in READS.values():
        await assert_damaged(channel_store, SECOND_MESSAGE, verb)


@pytest.mark.parametrize("kind", ["fraction", "text", "list"])
@pytest.mark.parametrize("backlog_max", [None, 100], ids=["unlimited", "limited"])
async def test_damaged_deduplication_entry_is_reported_by_publish(
    store_server: EmbeddedServer, kind: str, backlog_max: int | None
) -> None:
    rule = ChannelRule(pattern=".+", backlog_max=backlog_max)
    async with open_channels(store_server, rules=(rule,)) as channel_store:
        await fill(channel_store)
        await damage(channel_store, ENTRY, kind)

        for verb in PUBLISHES.values():
            await assert_damaged(channel_store, ENTRY, verb)
        await assert_works(channel_store, "ch")
