"""Ack handles: the form that DSPS made, safe in a URL, and useless where they do not belong."""

from __future__ import annotations

import base64
import json
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.channels.helpers import CLOCK_MAX, CLOCK_MIN, open_channels
from waystation.channels.model import decode_handle, encode_handle
from waystation.errors import AckHandleMalformedError, SubscriberNotFoundError
from waystation.store.embedded.server import EmbeddedServer

names = st.from_regex(r"[0-9a-z][0-9a-z_-]{0,62}", fullmatch=True)
clocks = st.integers(CLOCK_MIN, CLOCK_MAX)


def dsps_checksum(channel: str, subscriber: str, clock: int) -> str:
    """DSPS's checksum, computed anew from its description."""
    covered = b"dsps.storage.redis\0" + channel.encode() + b"\0" + subscriber.encode() + b"\0"
    crc = zlib.crc32(covered + clock.to_bytes(8, "big", signed=True))
    return base64.b64encode(struct.pack(">I", crc)).decode().rstrip("=")


def dsps_handle(channel: str, subscriber: str, clock: int, *, storage: str = "default") -> str:
    """A handle as DSPS's multiplexer over one Redis makes it."""
    inner = json.dumps({"clk": clock, "xs": dsps_checksum(channel, subscriber, clock)})
    return base64.b64encode(json.dumps({storage: inner}).encode()).decode()


def wrapped(content: object) -> str:
    return base64.b64encode(json.dumps(content).encode()).decode()


@given(names, names, clocks)
def test_a_handle_is_what_dsps_would_have_made(channel: str, subscriber: str, clock: int) -> None:
    outer = json.loads(base64.b64decode(encode_handle(channel, subscriber, clock), validate=True))

    assert list(outer) == ["default"]
    assert json.loads(outer["default"]) == {
        "clk": clock,
        "xs": dsps_checksum(channel, subscriber, clock),
    }


@given(names, names, clocks)
def test_a_handle_of_dsps_is_understood(channel: str, subscriber: str, clock: int) -> None:
    assert decode_handle(channel, subscriber, dsps_handle(channel, subscriber, clock)) == clock


@given(names, names, clocks)
def test_a_handle_survives_in_a_url_without_escaping(
    channel: str, subscriber: str, clock: int
) -> None:
    handle = encode_handle(channel, subscriber, clock)

    assert not set(handle) - set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789=")


def test_the_form_never_changes() -> None:
    """Handles lie with clients across an upgrade, so this text is a promise."""
    assert encode_handle("chan", "sub", 1) == (
        "eyJkZWZhdWx0Ijoie1wiY2xrXCI6MSxcInhzXCI6XCJ1NkpTY3dcIn0ifQ=="
    )


GOOD = {"clk": 7, "xs": dsps_checksum("ch", "s", 7)}


@pytest.mark.parametrize(
    "handle",
    [
        "x",
        "@@@@",
        "====",
        "e30",  # padding is missing
        "eyJ",
        "e30=e30=",
        " e30=",
        "e30=\n",
        "ü",
        "\0",
        wrapped([]),
        wrapped("default"),
        wrapped(7),
        wrapped({"default": 7}),
        wrapped({"default": GOOD}),
        wrapped({"default": ""}),
        wrapped({"default": "{}"}),
        wrapped({"default": json.dumps({"clk": 7})}),
        wrapped({"default": json.dumps({"xs": GOOD["xs"]})}),
        wrapped({"default": json.dumps({**GOOD, "clk": 8})}),
        wrapped({"default": json.dumps({**GOOD, "clk": "7"})}),
        wrapped({"default": json.dumps({**GOOD, "clk": 2**63})}),
        wrapped({"default": json.dumps({**GOOD, "clk": 10**40})}),
        wrapped({"default": json.dumps({**GOOD, "xs": ""})}),
        wrapped({"default": json.dumps({**GOOD, "xs": None})}),
        wrapped({"default": json.dumps({"mid": "m1", "xs": GOOD["xs"]})}),
        dsps_handle("other", "s", 7),
        dsps_handle("ch", "other", 7),
        dsps_handle("s", "ch", 7),
        dsps_handle("ch", "s", 2**53),
        dsps_handle("ch", "s", -(2**53)),
        base64.b64encode(b"[" * 100_000).decode(),
        base64.b64encode(b'{"default":"\xff"}').decode(),
        "A" * 1_000_000,
    ],
    ids=lambda handle: handle[:40].encode("unicode_escape").decode() or "empty",
)
def test_what_is_no_handle_of_this_subscriber_is_malformed(handle: str) -> None:
    with pytest.raises(AckHandleMalformedError) as caught:
        decode_handle("ch", "s", handle)
    assert caught.value.code == "dsps.storage.ack-handle-malformed"


@given(st.binary(max_size=200))
def test_garbage_is_malformed_or_names_no_storage_of_ours(content: bytes) -> None:
    try:
        clock = decode_handle("ch", "s", base64.b64encode(content).decode())
    except AckHandleMalformedError:
        return
    assert clock is None


async def test_a_handle_of_other_storages_acknowledges_nothing(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server) as opened:
        channels = opened.channels
        await channels.subscribe("default", "ch", "s")
        await channels.publish("default", "ch", "m1", b"1")

        for handle in ("e30=", dsps_handle("ch", "s", 1, storage="other")):
            assert await channels.ack("default", "ch", "s", handle) is False

        assert await opened.ids("ch", "s") == ["m1"]


async def test_a_forged_handle_moves_nothing_beyond_what_was_published(
    store_server: EmbeddedServer,
) -> None:
    """The checksum is no signature: what a handle may do is decided by clock and cursor."""
    async with open_channels(store_server) as opened:
        channels = opened.channels
        await channels.subscribe("default", "ch", "s")
        await channels.publish("default", "ch", "m1", b"1")

        for clock in (2, 10**6, CLOCK_MAX, CLOCK_MIN, -1, 0):
            assert await channels.ack("default", "ch", "s", dsps_handle("ch", "s", clock)) is False

        assert await opened.number("c.{ch}.r.s") == 0


async def test_a_well_formed_handle_of_an_unknown_subscriber_says_so(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server) as opened:
        with pytest.raises(SubscriberNotFoundError):
            await opened.channels.ack("default", "ch", "s", dsps_handle("ch", "s", 1))
