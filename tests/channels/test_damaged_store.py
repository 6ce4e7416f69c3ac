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
    "fetch": lambda fixture: fixture.channels.fetch("default", "ch", "me", limit=10),
    "poll": lambda fixture: fixture.channels.fetch("default", "ch", "me", limit=10, wait_s=5),
    "stream": lambda fixture: fixture.channels.stream("default", "ch", "me").read(10),
}
PUBLISHES: dict[str, Verb] = {
    "publish": lambda fixture: fixture.channels.publish("default", "ch", "new", b"1"),
    "publish_many": lambda fixture: fixture.channels.publish_many("default", "ch", [("new", b"1")]),
}
MOVES: dict[str, Verb] = {
    "ack": lambda fixture: fixture.channels.ack(
        "default", "ch", "me", encode_handle("ch", "me", 1)
    ),
    "seek": lambda fixture: fixture.channels.seek("default", "ch", "me", "beginning"),
    "subscribe": lambda fixture: fixture.channels.subscribe("default", "ch", "me"),
    "list_subscribers": lambda fixture: ChannelQueries(fixture.store).subscribers(
        "default", "ch", limit=10
    ),
}
LIST_CHANNELS: dict[str, Verb] = {
    "list_channels": lambda fixture: ChannelQueries(fixture.store).channels("default", limit=10),
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


async def damage(fixture: ChannelStore, key: str, kind: str) -> None:
    command, value = DAMAGES[kind]
    await fixture.store.call("DEL", key)
    await fixture.store.call(command, key, value)
    await fixture.store.call("EXPIRE", key, 1000)


async def dump(fixture: ChannelStore) -> dict[bytes, tuple[bytes, int]]:
    """Return the content of all keys and the time at which each expires."""
    names = sorted(await fixture.store.call("KEYS", "*"))
    return {
        name: (
            await fixture.store.call("DUMP", name),
            await fixture.store.call("PEXPIRETIME", name),
        )
        for name in names
    }


async def fill(fixture: ChannelStore) -> None:
    for channel in ("ch", "other"):
        await fixture.channels.subscribe("default", channel, "me")
        for number in range(3):
            await fixture.channels.publish("default", channel, f"m-{number}", b"1")


async def assert_damaged(fixture: ChannelStore, key: str, verb: Verb) -> None:
    """Assert that the verb names the damaged key, and that it changes no key."""
    before = await dump(fixture)
    with pytest.raises(StoreDamagedError) as raised:
        await verb(fixture)
    assert raised.value.code == "store.damaged"
    assert raised.value.key == key
    assert f"DEL {key}" in raised.value.hint
    assert await dump(fixture) == before


async def assert_works(fixture: ChannelStore, channel: str) -> None:
    assert not (await fixture.channels.publish("default", channel, "later", b"1")).duplicate
    fetched = await fixture.channels.fetch("default", channel, "me", limit=10)
    assert fetched.messages[-1].id == "later"


@pytest.mark.parametrize("kind", DAMAGES)
async def test_damaged_clock_is_reported_by_every_verb(
    store_server: EmbeddedServer, kind: str
) -> None:
    async with open_channels(store_server) as fixture:
        await fill(fixture)
        await damage(fixture, CLOCK, kind)

        for verb in VERBS.values():
            await assert_damaged(fixture, CLOCK, verb)
        await assert_works(fixture, "other")


@pytest.mark.parametrize("kind", DAMAGES)
async def test_damaged_cursor_is_reported_by_verbs_of_its_subscriber(
    store_server: EmbeddedServer, kind: str
) -> None:
    async with open_channels(store_server) as fixture:
        await fill(fixture)
        await fixture.channels.subscribe("default", "ch", "healthy")
        await damage(fixture, CURSOR, kind)

        for verb in (READS | MOVES).values():
            await assert_damaged(fixture, CURSOR, verb)
        await fixture.channels.publish("default", "ch", "new", b"1")
        assert await fixture.ids("ch", "healthy") == ["new"]
        # An operator can repair the cursor without access to the store.
        assert await fixture.channels.unsubscribe("default", "ch", "me")
        assert await fixture.channels.subscribe("default", "ch", "me")


@pytest.mark.parametrize("verb", READS)
async def test_message_key_of_another_type_is_reported_until_it_is_deleted(
    store_server: EmbeddedServer, verb: str
) -> None:
    async with open_channels(store_server) as fixture:
        await fill(fixture)
        await damage(fixture, SECOND_MESSAGE, "list")

        await assert_damaged(fixture, SECOND_MESSAGE, READS[verb])
        await assert_works(fixture, "other")
        await fixture.store.call("DEL", SECOND_MESSAGE)
        fetched = await fixture.channels.fetch("default", "ch", "me", limit=10)
        assert [message.id for message in fetched.messages] == ["m-0", "m-2"]
        assert fetched.expired == 1


async def test_message_key_of_another_type_behind_a_gap_moves_no_cursor(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server) as fixture:
        await fill(fixture)
        await fixture.store.call("DEL", "c.{ch}.m.1")
        await damage(fixture, SECOND_MESSAGE, "list")

        for verb in READS.values():
            await assert_damaged(fixture, SECOND_MESSAGE, verb)


@pytest.mark.parametrize("kind", ["fraction", "text", "list"])
@pytest.mark.parametrize("backlog_max", [None, 100], ids=["unlimited", "limited"])
async def test_damaged_deduplication_entry_is_reported_by_publish(
    store_server: EmbeddedServer, kind: str, backlog_max: int | None
) -> None:
    rule = ChannelRule(pattern=".+", backlog_max=backlog_max)
    async with open_channels(store_server, rules=(rule,)) as fixture:
        await fill(fixture)
        await damage(fixture, ENTRY, kind)

        for verb in PUBLISHES.values():
            await assert_damaged(fixture, ENTRY, verb)
        await assert_works(fixture, "ch")
