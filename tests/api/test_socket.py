"""WebSockets, with a real client: order, acknowledgement, flow control, hostile frames, ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.helpers.http import (
    SECONDS_MAX,
    async_ask,
    async_wire,
    async_wires,
    request_bytes,
    until_blocked,
)
from tests.helpers.processes import station_process
from tests.helpers.waiting import eventually
from waystation.api import request as request_module
from waystation.api import socket_connection
from waystation.api.streams import channel_streams
from waystation.config import Config, HttpConfig
from waystation.testing import serving
from waystation.testing.station import Serving

PATH = "/v1/channels/news/subscribers/me/socket"
HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


class Talk:
    """A client, with frames as JSON."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def hear(self) -> Any:
        """The next frame."""
        async with asyncio.timeout(SECONDS_MAX):
            return json.loads(await self.connection.recv())

    async def messages(self, count: int) -> list[Any]:
        """The next frames, which must be messages."""
        frames = [await self.hear() for _ in range(count)]
        assert {frame["type"] for frame in frames} <= {"message"}, frames
        return frames

    async def ids(self, count: int) -> list[str]:
        """Their ids."""
        return [frame["messageID"] for frame in await self.messages(count)]

    async def say(self, **frame: object) -> None:
        """Sends a frame."""
        await self.connection.send(json.dumps(frame))

    async def ack(self, message: Any) -> None:
        """Acknowledges everything up to a message."""
        await self.say(type="ack", ackHandle=message["ackHandle"])

    async def silent(self) -> None:
        """Asks for something that is answered, and expects that nothing comes before it."""
        await self.say(type="nothing")
        assert (await self.hear())["type"] == "error"

    async def closed(self) -> tuple[int, str]:
        """Waits for the end: code and reason."""
        async with asyncio.timeout(SECONDS_MAX):
            await self.connection.wait_closed()
        code, reason = self.connection.close_code, self.connection.close_reason
        assert code is not None
        assert code != 1006, "the connection broke without a word"
        return code, reason or ""


@asynccontextmanager
async def talk(url: str, query: str = "create=true", **options: Any) -> AsyncIterator[Talk]:
    """A conversation for the length of the block."""
    address = f"{url.replace('http', 'ws', 1)}{PATH}?{query}"
    async with connect(address, proxy=None, **options) as connection:
        yield Talk(connection)


async def publish(server: Serving, *ids: str) -> None:
    for each in ids:
        await server.node.channels.publish("default", "news", each, b'{"n":1.0}')


async def unread(server: Serving) -> list[str]:
    fetched = await server.node.channels.fetch("default", "news", "me", limit=100)
    return [message.id for message in fetched.messages]


async def until_unread(server: Serving, expected: list[str]) -> None:
    async def is_expected() -> bool:
        return await unread(server) == expected

    await eventually(is_expected, timeout=SECONDS_MAX)


async def until_streams(count: float) -> None:
    gauge = channel_streams.labels("socket")
    await eventually(lambda: gauge._value.get() == count, timeout=SECONDS_MAX)


async def test_messages_come_in_order_and_are_acknowledged(settings: Config) -> None:
    async with serving(settings) as server, talk(server.url) as client:
        await publish(server, "a", "b", "c")
        raw = await client.connection.recv()
        assert '{"type":"message","messageID":"a","content":{"n":1.0},"ackHandle":"' in raw
        second, _ = await client.messages(2)
        await client.ack(second)
        await until_unread(server, ["c"])


async def test_what_was_not_acknowledged_comes_again_on_the_next_connection(
    settings: Config,
) -> None:
    async with serving(settings) as server:
        async with talk(server.url) as client:
            await publish(server, "a", "b", "c")
            first, *_ = await client.messages(3)
            await client.ack(first)
        async with talk(server.url) as client:
            assert await client.ids(2) == ["b", "c"]


async def test_a_client_that_acknowledges_and_hangs_up_at_once_is_heard(
    settings: Config,
) -> None:
    async with serving(settings) as server:
        async with talk(server.url) as client:
            await publish(server, "a")
            (message,) = await client.messages(1)
            await client.ack(message)
        await until_unread(server, [])


async def test_publishing_is_answered_and_the_message_comes_back(settings: Config) -> None:
    async with serving(settings) as server, talk(server.url) as client:
        await client.connection.send(
            '{"type":"publish","messageID":"m","content":{"n": 12345678901234567890}}'
        )
        frames = sorted([await client.connection.recv(), await client.connection.recv()])
        assert frames[1] == '{"type":"published","messageID":"m"}'
        assert '"content":{"n": 12345678901234567890}' in frames[0]
        await client.say(type="publish", messageID="m", content=2)
        assert await client.hear() == {"type": "published", "messageID": "m"}
        await client.silent()


async def test_only_so_many_messages_are_under_way(settings: Config) -> None:
    async with serving(settings) as server, talk(server.url, "create=true&max=2") as client:
        await publish(server, "a", "b", "c", "d", "e")
        _, second = await client.messages(2)
        await client.silent()
        await client.ack(second)
        third, _ = await client.messages(2)
        await client.silent()
        await client.ack(third)
        assert await client.ids(1) == ["e"]


async def test_two_connections_of_one_subscriber_both_get_everything(settings: Config) -> None:
    async with serving(settings) as server, talk(server.url) as one, talk(server.url) as two:
        await publish(server, "a", "b")
        assert await one.ids(2) == await two.ids(2) == ["a", "b"]


async def test_a_seek_moves_a_connection_that_is_open(settings: Config) -> None:
    async with serving(settings) as server, talk(server.url) as client:
        await publish(server, "a", "b", "c")
        *_, last = await client.messages(3)
        await client.ack(last)
        await until_unread(server, [])
        await server.node.channels.seek("default", "news", "me", "beginning", 0)
        assert await client.ids(3) == ["a", "b", "c"]


# -- Bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("", "input.invalid"),
        ("{", "input.invalid"),
        ("[]", "input.invalid"),
        ("[" * 100_000, "input.invalid"),
        ('{"type":"unknown"}', "input.invalid"),
        ('{"type":"ack"}', "input.invalid"),
        ('{"type":"ack","ackHandle":1}', "input.invalid"),
        ('{"type":"ack","ackHandle":"x"}', "dsps.storage.ack-handle-malformed"),
        ('{"type":"publish","messageID":"M","content":1}', "input.invalid"),
        ('{"type":"publish","messageID":"m"}', "input.invalid"),
        ('{"type":"publish","messageID":"m","content":NaN}', "input.invalid"),
        (r'{"type":"publish","messageID":"\ud800","content":1}', "input.invalid"),
        (
            '{"type":"publish","messageID":"m","content":"' + "x" * 1_048_575 + '"}',
            "input.too-large",
        ),
    ],
)
async def test_a_frame_that_cannot_be_handled_is_answered_and_the_connection_goes_on(
    settings: Config, frame: str, code: str
) -> None:
    async with serving(settings) as server, talk(server.url) as client:
        await client.connection.send(frame)
        told = await client.hear()
        assert told["type"] == "error"
        assert (
            told["code"].endswith(code.removeprefix("*")) if "*" in code else told["code"] == code
        )
        assert len(told["detail"]) < 300
        await publish(server, "a")
        assert await client.ids(1) == ["a"]


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("x" * 2_000_000, 1009),
        (["x" * 400_000] * 5, 1009),
        (b"\x00\xff", 1003),
    ],
    ids=["huge", "huge in parts", "binary"],
)
async def test_a_frame_that_breaks_the_rules_ends_the_connection(
    settings: Config, frame: Any, code: int
) -> None:
    async with serving(settings) as server, talk(server.url) as client:
        # It may be told in the middle of sending.
        with contextlib.suppress(ConnectionClosed):
            await client.connection.send(frame)
        assert (await client.closed())[0] == code
        await until_streams(0)
        assert (await async_ask(server.url, "GET", "/livez")).status == 200


async def test_text_that_is_not_utf8_and_frames_that_are_none_end_it_too(
    settings: Config,
) -> None:
    async with serving(settings) as server:
        # A text frame of one byte that is no character; then a reserved opcode.
        for frame in (b"\x81\x81\x00\x00\x00\x00\xff", b"\x8f\x80\x00\x00\x00\x00"):
            async with async_wire(server.url) as wire:
                wire.send(request_bytes("GET", PATH + "?create=true", None, HANDSHAKE))
                assert (await wire.answer()).status == 101
                wire.send(frame)
                left = await wire._stream.read(100)
                assert left[0] == 0x88, left
        await until_streams(0)


async def test_a_message_that_is_not_sent_in_time_ends_the_connection(settings: Config) -> None:
    settings = replace(settings, http=HttpConfig(port=0, read_seconds_max=0.3))
    async with serving(settings) as server, async_wire(server.url) as wire:
        wire.send(request_bytes("GET", PATH + "?create=true", None, HANDSHAKE))
        assert (await wire.answer()).status == 101
        # The head of a frame of 1000 bytes, and nothing of it.
        wire.send(b"\x81\xfe\x03\xe8\x00\x00\x00\x00")
        left = await asyncio.wait_for(wire._stream.read(100), 10)
        assert left[:1] == b"\x88"
        assert left[2:4] == (1008).to_bytes(2, "big")
        await until_streams(0)


async def test_a_message_in_endless_fragments_ends_the_connection(settings: Config) -> None:
    """Empty ones never reach the largest size."""
    async with serving(settings) as server, async_wire(server.url) as wire:
        wire.send(request_bytes("GET", PATH + "?create=true", None, HANDSHAKE))
        assert (await wire.answer()).status == 101
        wire.send(b"\x01\x80\x00\x00\x00\x00" + b"\x00\x80\x00\x00\x00\x00" * 2000)
        left = await asyncio.wait_for(wire._stream.read(100), SECONDS_MAX)
        assert left[:1] == b"\x88"
        assert left[2:4] == (1009).to_bytes(2, "big")


async def test_unfinished_messages_of_all_connections_share_one_budget(
    settings: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_module, "BODIES_BYTES_MAX", 300_000)
    # A frame of 500,000 bytes, and the first 200,000 of them.
    part = b"\x81\xff" + (500_000).to_bytes(8, "big") + b"\x00" * 4 + b"x" * 200_000
    async with serving(settings) as server:
        async with async_wires(server.url, 2) as (first, second):
            for wire in (first, second):
                wire.send(request_bytes("GET", PATH + "?create=true", None, HANDSHAKE))
                assert (await wire.answer()).status == 101
            first.send(part)
            async with asyncio.timeout(SECONDS_MAX):
                while request_module._Budget.used_bytes < 200_000:
                    await asyncio.sleep(0.005)
            second.send(part)
            left = await asyncio.wait_for(second._stream.read(100), SECONDS_MAX)
            assert left[2:4] == (1013).to_bytes(2, "big")
        async with asyncio.timeout(SECONDS_MAX):
            while request_module._Budget.used_bytes:
                await asyncio.sleep(0.005)


async def test_a_client_that_pings_and_never_reads_holds_little_memory(
    settings: Config,
) -> None:
    async with serving(settings) as server, async_wire(server.url) as wire:
        small: socket.socket = wire.writer.get_extra_info("socket")
        small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.send(request_bytes("GET", PATH + "?create=true", None, HANDSHAKE))
        assert (await wire.answer()).status == 101
        wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
        ping = b"\x89\xfd\x00\x00\x00\x00" + b"x" * 125
        (connection,) = [
            each for each in server.server._server.server_state.connections if each.frames == []
        ]
        before = -1
        async with asyncio.timeout(SECONDS_MAX):
            while (unsent := connection.transport.get_write_buffer_size()) < 60_000 or (
                unsent != before
            ):
                before = unsent
                wire.send(ping * 10_000)
                await asyncio.sleep(0.05)
        assert unsent < 1_000_000


# -- The door --------------------------------------------------------------------------------


async def refusal(url: str, path: str = PATH, **headers: str) -> tuple[int, str]:
    answer = await async_ask(url, "GET", path, None, {**HANDSHAKE, **headers})
    return answer.status, answer.json()["code"]


async def test_what_is_refused_is_refused_as_on_other_routes(settings: Config) -> None:
    async with serving(settings) as server:
        missing = (404, "dsps.storage.subscription-not-found")
        assert await refusal(server.url) == missing
        assert await refusal(server.url, PATH.replace("news", "A")) == (400, "input.invalid")
        assert await refusal(server.url, PATH + "?max=0") == (400, "input.invalid")
        assert await refusal(server.url, PATH + "?max=9999999") == (400, "input.invalid")
        assert await refusal(server.url, "/nowhere/socket") == (404, "not-found")
        # Elsewhere the offer is ignored, as HTTP allows.
        polled = "/channel/socket/subscription/polling/me"
        answer = await async_ask(server.url, "GET", polled, None, HANDSHAKE)
        assert answer.json()["code"] == "dsps.storage.subscription-not-found"
        plain = await async_ask(server.url, "GET", PATH)
        assert (plain.status, plain.header("upgrade")) == (426, "websocket")
        assert plain.json()["code"] == "upgrade-required"


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost.evil.example"},
        {"Host": "evil.example"},
        {"Host": "evil.example", "Origin": "http://evil.example"},
    ],
)
async def test_a_page_of_another_site_cannot_open_one_on_a_station_without_keys(
    settings: Config, headers: dict[str, str]
) -> None:
    """Cross-site hijacking: a browser asks nobody before it opens a WebSocket."""
    async with serving(settings) as server:
        assert await refusal(server.url, PATH + "?create=true", **headers) == (
            403,
            "auth.forbidden",
        )
        assert (await async_ask(server.url, "GET", PATH, None, HANDSHAKE)).status == 404
        async with talk(server.url, origin="http://localhost:8000"):  # type: ignore[arg-type]
            pass


async def test_an_upgrade_behind_an_unfinished_reply_is_refused(settings: Config) -> None:
    """The reply would go on writing into the WebSocket, and never hear of its end."""
    async with serving(settings) as server, async_wire(server.url) as wire:
        events = PATH.replace("socket", "events") + "?create=true"
        wire.send(request_bytes("GET", events))
        wire.send(request_bytes("GET", PATH, None, HANDSHAKE))
        async with asyncio.timeout(SECONDS_MAX):
            while await wire._stream.read(65536):
                pass
        gauge = channel_streams.labels("events")
        async with asyncio.timeout(SECONDS_MAX):
            while gauge._value.get():
                await asyncio.sleep(0.005)


async def test_a_handshake_may_come_in_pieces(settings: Config) -> None:
    whole = request_bytes("GET", PATH + "?create=true", None, HANDSHAKE)
    start = whole.index(b"Upgrade: websocket")
    async with serving(settings) as server:
        for cut in range(start - 2, start + 22, 3):
            async with async_wire(server.url) as wire:
                wire.writer.get_extra_info("socket").setsockopt(
                    socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
                )
                wire.send(whole[:cut])
                await asyncio.sleep(0.02)
                wire.send(whole[cut:])
                assert (await wire.answer()).status == 101, cut


async def test_a_handshake_that_the_library_does_not_take_is_answered(settings: Config) -> None:
    async with serving(settings) as server:
        long = {"X-Long": "x" * 10_000}
        async with asyncio.timeout(5):
            answer = await async_ask(server.url, "GET", PATH, None, {**HANDSHAKE, **long})
        assert answer.status == 431
        without_key = {**HANDSHAKE, "Sec-WebSocket-Key": "short"}
        answer = await async_ask(server.url, "GET", PATH, None, without_key)
        assert answer.status == 400


async def test_a_connection_keeps_its_place_and_gives_it_back(settings: Config) -> None:
    settings = replace(settings, http=HttpConfig(port=0, connections_max=2))
    async with serving(settings) as server:
        bounds = server.server._bounds
        for _ in range(3):
            async with talk(server.url), talk(server.url):
                assert bounds.placed == 2
                answer = await async_ask(server.url, "GET", "/livez")
                assert answer.status == 503
                with pytest.raises(InvalidStatus, match="503"):
                    async with talk(server.url):
                        pass
            async with asyncio.timeout(SECONDS_MAX):
                while bounds.placed:
                    await asyncio.sleep(0.005)


# -- Ends ------------------------------------------------------------------------------------


async def test_unsubscribing_closes_it_with_the_reason(settings: Config) -> None:
    async with serving(settings) as server, talk(server.url) as client:
        await server.node.channels.unsubscribe("default", "news", "me")
        assert await client.closed() == (4404, "dsps.storage.subscription-not-found")


async def test_a_stop_closes_it_cleanly_and_a_time_limit_too(settings: Config) -> None:
    settings = replace(settings, http=HttpConfig(port=0, stream_seconds_max=0.5))
    async with serving(settings) as server:
        async with talk(server.url) as client:
            assert (await client.closed())[0] == 1012
        async with talk(server.url) as client:
            began = asyncio.get_running_loop().time()
            stopping = asyncio.create_task(server.server.stop())
            assert (await client.closed())[0] == 1012
            await stopping
            assert asyncio.get_running_loop().time() - began < 4.5
        await server.server.start()


async def test_a_client_that_does_not_read_holds_little_and_a_stop_does_not_wait_for_it(
    settings: Config,
) -> None:
    async with serving(settings) as server, async_wire(server.url) as wire:
        wire.send(request_bytes("GET", PATH + "?create=true", None, HANDSHAKE))
        assert (await wire.answer()).status == 101
        wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
        (connection,) = server.server._server.server_state.connections
        content = b'"' + b"x" * 500_000 + b'"'
        for number in range(40):
            await server.node.channels.publish("default", "news", f"m{number}", content)
        unsent = await until_blocked(
            connection.transport, lambda: not connection.writable.is_set(), seconds=SECONDS_MAX
        )
        assert unsent < 1_500_000
        began = asyncio.get_running_loop().time()
        await server.server.stop()
        assert asyncio.get_running_loop().time() - began < 4.5
        await server.server.start()


async def test_a_client_that_takes_nothing_is_let_go(
    settings: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_connection, "STALLED_SECONDS_MAX", 0.5)
    async with serving(settings) as server, async_wire(server.url) as wire:
        wire.send(request_bytes("GET", PATH + "?create=true", None, HANDSHAKE))
        assert (await wire.answer()).status == 101
        wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
        content = b'"' + b"x" * 900_000 + b'"'
        for number in range(20):
            await server.node.channels.publish("default", "news", f"m{number}", content)
        await until_streams(0)


async def test_a_client_that_answers_no_ping_is_let_go(settings: Config) -> None:
    async with serving(settings) as server, async_wire(server.url) as wire:
        config = server.server._server.config
        config.ws_ping_interval = config.ws_ping_timeout = 1.0
        wire.send(request_bytes("GET", PATH + "?create=true", None, HANDSHAKE))
        assert (await wire.answer()).status == 101
        await until_streams(1)
        assert (await wire._stream.read(1)) == b"\x89", "a ping"
        await until_streams(0)


async def test_clients_that_vanish_leave_nothing_behind(settings: Config) -> None:
    async with serving(settings) as server:
        await async_ask(server.url, "PUT", "/channel/news/subscription/polling/me")
        tasks = len(asyncio.all_tasks())
        for _ in range(30):
            async with async_wire(server.url) as wire:
                wire.send(request_bytes("GET", PATH, None, HANDSHAKE))
                assert (await wire.answer()).status == 101
                wire.vanish()
        await until_streams(0)
        assert " 0 waiters" in repr(server.node.opened.wakeups)
        async with asyncio.timeout(SECONDS_MAX):
            while len(asyncio.all_tasks()) > tasks:
                await asyncio.sleep(0.005)


async def test_a_connection_outlives_a_store_that_is_away(own_store_settings: Config) -> None:
    async with serving(own_store_settings) as server, talk(server.url) as client:
        await publish(server, "a")
        assert await client.ids(1) == ["a"]
        embedded = server.node.opened.server
        assert embedded is not None
        os.kill(embedded.process_id, signal.SIGKILL)
        await client.say(type="publish", messageID="b", content=1)
        frames = [await client.hear(), await client.hear()]
        assert {frame["type"] for frame in frames} == {"published", "message"}


@pytest.mark.slow
async def test_unacknowledged_messages_come_again_after_a_killed_server(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with station_process(data) as station:
        async with talk(station.url) as client:
            for name in ("a", "b", "c"):
                await client.say(type="publish", messageID=name, content=1)
            frames = [await client.hear() for _ in range(6)]
            messages = [frame for frame in frames if frame["type"] == "message"]
            await client.ack(messages[0])
            await client.silent()
            station.signal(signal.SIGKILL)
            await station.exit_code()
    with station_process(data) as station:
        async with talk(station.url, "create=false") as client:
            assert await client.ids(2) == ["b", "c"]
