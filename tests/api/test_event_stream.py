"""Server-sent events: order, resuming where the browser was, and every way a stream ends."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.faults.test_long_polls import allow_descriptors
from tests.helpers.http import EventReader, async_ask, event_stream, until_blocked
from tests.helpers.interleavings import count_calls
from tests.helpers.processes import station_process
from tests.helpers.waiting import eventually
from waystation.api import event_stream as event_stream_module
from waystation.api.streams import channel_streams
from waystation.config import ChannelConfig, Config, HttpConfig
from waystation.testing import serving
from waystation.testing.station import Serving

EVENTS = "/v1/channels/{}/subscribers/me/events"


def events(channel: str = "news", *, create: bool = True) -> str:
    return EVENTS.format(channel) + ("?create=true" if create else "")


async def publish(server: Serving, *ids: str, channel: str = "news") -> None:
    for each in ids:
        await server.node.channels.publish("default", channel, each, b'{"n":1}')


def open_streams() -> float:
    return channel_streams.labels("events")._value.get()


async def until_streams(count: float, *, seconds: float = 20) -> None:
    """Wait until exactly `count` streams are open."""
    await eventually(lambda: open_streams() == count, timeout=seconds)


async def test_messages_come_in_order_with_the_handle_as_id(settings: Config) -> None:
    async with serving(settings) as server, event_stream(server.url, events()) as stream:
        assert stream.status == 200
        assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert "no-store" in stream.headers["cache-control"]
        assert stream.headers["x-accel-buffering"] == "no"

        await publish(server, "a", "b", "c")

        first = await stream.message()
        assert first.data == '{"messageID":"a","content":{"n":1}}'
        assert await stream.ids(2) == ["b", "c"]
        # The id is an ack handle, good on the ordinary route.
        ack = f"/channel/news/subscription/polling/me/message?ackHandle={first.id}"
        assert (await async_ask(server.url, "DELETE", ack)).status == 204
        fetched = await async_ask(server.url, "GET", "/channel/news/subscription/polling/me")
        assert [each["messageID"] for each in fetched.json()["messages"]] == ["b", "c"]


async def test_what_was_unread_before_the_stream_comes_first(settings: Config) -> None:
    async with serving(settings) as server:
        await server.node.channels.subscribe("default", "news", "me")
        ids = [f"m{number}" for number in range(200)]
        await publish(server, *ids)
        async with event_stream(server.url, events(create=False)) as stream:
            assert await stream.ids(200) == ids
            await publish(server, "live")
            assert await stream.ids(1) == ["live"]


@pytest.mark.parametrize(
    ("content", "data"),
    [
        (b"1.0", "1.0"),
        (b"12345678901234567890123", "12345678901234567890123"),
        ('{"a":"é\u2028"}'.encode(), '{"a":"é\u2028"}'),
        (b'{"a":"x\\ny"}', '{"a":"x\\ny"}'),
        (b'{\n  "a":\r\n 1\r}', '{   "a":   1 }'),
    ],
    ids=["a float", "a big integer", "text", "an escaped line break", "line breaks"],
)
async def test_content_is_kept_and_stays_on_one_line(
    settings: Config, content: bytes, data: str
) -> None:
    async with serving(settings) as server, event_stream(server.url, events()) as stream:
        await server.node.channels.publish("default", "news", "m", content)
        assert (await stream.message()).data == f'{{"messageID":"m","content":{data}}}'


async def test_a_stream_begins_with_when_to_come_back(settings: Config) -> None:
    async with serving(settings) as server, event_stream(server.url, events()) as stream:
        first = await stream.event()
        assert first is not None
        assert 500 <= int(first.retry) <= 2500


# -- Resuming --------------------------------------------------------------------------------


async def test_a_reconnect_acknowledges_what_was_seen_and_goes_on_after_it(
    settings: Config,
) -> None:
    async with serving(settings) as server:
        async with event_stream(server.url, events()) as stream:
            await publish(server, "a", "b", "c", "d")
            await stream.ids(1)
            seen = await stream.message()

        await publish(server, "e")

        async with event_stream(server.url, events(), Last_Event_ID=seen.id) as stream:
            assert await stream.ids(3) == ["c", "d", "e"]
        # Acknowledged in the store, not only passed over in the stream.
        async with event_stream(server.url, events()) as stream:
            assert await stream.ids(3) == ["c", "d", "e"]


async def test_without_an_id_everything_unacknowledged_comes_again(settings: Config) -> None:
    async with serving(settings) as server:
        for _ in range(2):
            async with event_stream(server.url, events()) as stream:
                await publish(server, "a", "b")
                assert await stream.ids(2) == ["a", "b"]


async def test_the_header_is_newer_than_the_id_in_the_address(settings: Config) -> None:
    """An EventSource keeps its address when it reconnects, and adds the header."""
    async with serving(settings) as server:
        async with event_stream(server.url, events()) as stream:
            await publish(server, "a", "b", "c")
            first, second = await stream.message(), await stream.message()
        old = events() + f"&lastEventId={first.id}"
        async with event_stream(server.url, old) as stream:
            assert await stream.ids(2) == ["b", "c"]
        async with event_stream(server.url, old, Last_Event_ID=second.id) as stream:
            assert await stream.ids(1) == ["c"]


async def test_an_old_id_never_moves_the_subscriber_back(settings: Config) -> None:
    async with serving(settings) as server:
        async with event_stream(server.url, events()) as stream:
            await publish(server, "a", "b", "c")
            first, _, third = [await stream.message() for _ in range(3)]
        async with event_stream(server.url, events(), Last_Event_ID=third.id):
            pass
        async with event_stream(server.url, events(), Last_Event_ID=first.id) as stream:
            await publish(server, "d")
            assert await stream.ids(1) == ["d"]


async def test_a_subscriber_that_expired_is_created_where_the_page_was(
    own_store_settings: Config,
) -> None:
    """A lid that was closed for longer than messages are kept: what is still there comes."""
    timed = replace(
        own_store_settings, time_machine=True, channels=ChannelConfig(expire_seconds=600)
    )
    async with serving(timed) as server:
        machine = server.node.opened.time_machine
        assert machine is not None
        async with event_stream(server.url, events()) as stream:
            await publish(server, "a", "b")
            await stream.ids(1)
            seen = await stream.message()
        await until_streams(0)
        await publish(server, "lost")
        await machine.advance(400)
        await publish(server, "kept")
        await machine.advance(400)

        async with event_stream(server.url, events(create=False)) as stream:
            assert stream.status == 404
        async with event_stream(server.url, events(), Last_Event_ID=seen.id) as stream:
            await stream.event()
            told = await stream.event()
            assert told is not None
            assert (told.name, told.json()) == ("lost", {"lostMessages": 1})
            assert await stream.ids(1) == ["kept"]


async def test_two_streams_on_one_subscriber_both_get_everything(settings: Config) -> None:
    async with (
        serving(settings) as server,
        event_stream(server.url, events()) as one,
        event_stream(server.url, events()) as two,
    ):
        await publish(server, "a", "b")
        assert await one.ids(2) == await two.ids(2) == ["a", "b"]


async def test_a_seek_to_before_what_was_acknowledged_moves_a_stream_that_is_running(
    settings: Config,
) -> None:
    async with serving(settings) as server, event_stream(server.url, events()) as stream:
        await publish(server, "a", "b")
        _, second = await stream.message(), await stream.message()
        ack = f"/channel/news/subscription/polling/me/message?ackHandle={second.id}"
        assert (await async_ask(server.url, "DELETE", ack)).status == 204
        await publish(server, "c")
        assert await stream.ids(1) == ["c"]

        seek = "/v1/channels/news/subscribers/me/seek"
        json = {"content-type": "application/json"}
        answer = await async_ask(server.url, "POST", seek, b'{"to":"beginning"}', json)

        assert answer.status == 200, answer
        assert await stream.ids(3) == ["a", "b", "c"]


async def test_expired_messages_are_counted_and_passed_over(own_store_settings: Config) -> None:
    timed = replace(
        own_store_settings, time_machine=True, channels=ChannelConfig(expire_seconds=600)
    )
    async with serving(timed) as server:
        machine = server.node.opened.time_machine
        assert machine is not None
        channels = server.node.channels
        await channels.subscribe("default", "news", "me")
        await channels.publish_many(
            "default", "news", [(f"old-{number}", b"1") for number in range(700)]
        )
        await machine.advance(400)
        await channels.fetch("default", "news", "me", limit=1)
        await machine.advance(400)
        await publish(server, "new")

        async with event_stream(server.url, events(create=False)) as stream:
            await stream.event()
            lost = 0
            while (told := await stream.event()) is not None and told.name == "lost":
                lost += told.json()["lostMessages"]
            assert lost == 700
            assert told is not None
            assert told.json()["messageID"] == "new"


# -- Ends ------------------------------------------------------------------------------------


async def test_a_subscriber_that_is_missing_is_404_unless_it_is_to_be_created(
    settings: Config,
) -> None:
    async with serving(settings) as server:
        answer = await async_ask(server.url, "GET", events(create=False))
        assert (answer.status, answer.header("content-type")) == (404, "application/problem+json")
        assert answer.json()["code"] == "dsps.storage.subscription-not-found"


async def test_unsubscribing_ends_the_stream_with_the_reason(settings: Config) -> None:
    async with serving(settings) as server, event_stream(server.url, events()) as stream:
        await stream.event()
        await server.node.channels.unsubscribe("default", "news", "me")
        (last,) = await stream.end()
        assert last.name == "end"
        assert last.json() == {"code": "dsps.storage.subscription-not-found"}


async def test_a_stop_ends_streams_at_once_and_cleanly(settings: Config) -> None:
    settings = replace(settings, http=HttpConfig(port=0, grace_seconds=60))
    async with serving(settings) as server:
        async with event_stream(server.url, events()) as stream:
            await publish(server, "a")
            assert await stream.ids(1) == ["a"]
            began = asyncio.get_running_loop().time()
            stopping = asyncio.create_task(server.server.stop())
            assert await stream.end() == []
            await stopping
            assert asyncio.get_running_loop().time() - began < 30
        await server.server.start()


async def test_a_stream_ends_when_its_time_is_up_and_the_next_goes_on(
    settings: Config,
) -> None:
    settings = replace(settings, http=HttpConfig(port=0, stream_seconds_max=2))
    async with serving(settings) as server:
        async with event_stream(server.url, events()) as stream:
            await publish(server, "a")
            seen = await stream.message()
            assert await stream.end() == []
        async with event_stream(server.url, events(), Last_Event_ID=seen.id) as stream:
            await publish(server, "b")
            assert await stream.ids(1) == ["b"]


async def test_a_client_that_hangs_up_leaves_nothing_behind(settings: Config) -> None:
    async with serving(settings) as server:
        await async_ask(server.url, "PUT", "/channel/news/subscription/polling/me")
        tasks = len(asyncio.all_tasks())
        async with AsyncExitStack() as opened:
            for _ in range(50):
                await opened.enter_async_context(event_stream(server.url, events()))
            await until_streams(50)
            assert " 50 waiters" in repr(server.node.opened.wakeups)
        await until_streams(0)
        assert " 0 waiters" in repr(server.node.opened.wakeups)
        async with asyncio.timeout(10):
            while len(asyncio.all_tasks()) > tasks:
                await asyncio.sleep(0.005)


async def test_a_heartbeat_keeps_a_silent_stream_open(
    settings: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream_module, "_HEARTBEAT_SECONDS", 0.05)
    async with serving(settings) as server, event_stream(server.url, events()) as stream:
        await stream.event()
        for _ in range(3):
            beat = await stream.event()
            assert beat is not None
            assert beat.comment
        await publish(server, "a")
        assert await stream.ids(1) == ["a"]


async def test_a_stream_outlives_a_store_that_is_away(own_store_settings: Config) -> None:
    async with serving(own_store_settings) as server, event_stream(server.url, events()) as stream:
        await publish(server, "a")
        assert await stream.ids(1) == ["a"]
        embedded = server.node.opened.server
        assert embedded is not None
        os.kill(embedded.process_id, signal.SIGKILL)
        # The client of the store tries again by itself until it is back.
        await publish(server, "b")
        assert await stream.ids(1) == ["b"]


# -- Bounds ----------------------------------------------------------------------------------


async def test_a_client_that_does_not_read_holds_little_memory_and_a_stop_does_not_wait_for_it(
    settings: Config,
) -> None:
    settings = replace(settings, http=HttpConfig(port=0, grace_seconds=3))
    async with serving(settings) as server:
        async with event_stream(server.url, events(), buffer_bytes=1024) as stream:
            content = b'"' + b"x" * 500_000 + b'"'
            for number in range(40):
                await server.node.channels.publish("default", "news", f"m{number}", content)
            (connection,) = server.server._server.server_state.connections
            unsent = await until_blocked(
                connection.transport, lambda: connection.flow.write_paused, seconds=20
            )
            # One read, and what the transport took before it said enough.
            assert unsent < 1_500_000
            began = asyncio.get_running_loop().time()
            await server.server.stop()
            assert asyncio.get_running_loop().time() - began < 4.5
            assert stream.status == 200
        await server.server.start()


@pytest.mark.parametrize("streams", [100, pytest.param(1000, marks=pytest.mark.slow)])
async def test_each_stream_looks_once_for_a_wake_up_and_all_share_one_connection(
    settings: Config, streams: int
) -> None:
    allow_descriptors(2 * streams + 200)
    async with serving(settings) as server, AsyncExitStack() as opened:
        readers: list[EventReader] = []
        for number in range(streams):
            path = f"/v1/channels/news/subscribers/s{number}/events?create=true"
            readers.append(await opened.enter_async_context(event_stream(server.url, path)))
            await readers[-1].event()
        await until_streams(streams)
        assert f" {streams} waiters" in repr(server.node.opened.wakeups)
        # The subscription has taken effect, and everyone has looked after that.
        await publish(server, "first")
        for reader in readers:
            assert await reader.ids(1) == ["first"]
        calls = count_calls(server.node.opened.store)

        await publish(server, "second")

        for reader in readers:
            assert await reader.ids(1) == ["second"]
        # One for each, the publish, and the node's own calls: a few in each second.
        assert calls() <= streams + 1 + max(10, streams // 10)
    await until_streams(0)


async def test_streams_are_counted(settings: Config) -> None:
    async with serving(settings) as server, event_stream(server.url, events()) as stream:
        await stream.event()
        text = (await async_ask(server.url, "GET", "/metrics")).body.decode()
        assert 'waystation_channel_streams{kind="events"} 1.0' in text


@pytest.mark.parametrize(
    ("target", "header", "code"),
    [
        ("/v1/channels/A/subscribers/me/events", "", "input.invalid"),
        ("/v1/channels/a/subscribers/-/events", "", "input.invalid"),
        ("/v1/channels/a/subscribers/me/events?create=yes", "", "input.invalid"),
        (events(), "nonsense", "dsps.storage.ack-handle-malformed"),
        (events(), "bnVsbA==", "dsps.storage.ack-handle-malformed"),
    ],
)
async def test_bad_input_is_told(settings: Config, target: str, header: str, code: str) -> None:
    async with serving(settings) as server:
        headers = {"Last-Event-ID": header} if header else {}
        answer = await async_ask(server.url, "GET", target, None, headers)
        assert (answer.status, answer.json()["code"]) == (400, code)


async def test_a_head_request_gets_a_head_and_creates_nothing(settings: Config) -> None:
    async with serving(settings) as server:
        answer = await async_ask(server.url, "HEAD", events())
        assert answer.status == 200
        assert (await async_ask(server.url, "GET", events(create=False))).status == 404


async def test_a_page_of_another_site_may_not_listen_to_a_station_without_keys(
    settings: Config,
) -> None:
    async with serving(settings) as server:
        for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
            answer = await async_ask(server.url, "GET", events(), None, headers)
            assert (answer.status, answer.json()["code"]) == (403, "auth.forbidden")
        local = {"Origin": "http://localhost:8000"}
        async with event_stream(server.url, events(), **local) as stream:
            assert stream.headers["access-control-allow-origin"] == "http://localhost:8000"


# -- Restart ---------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_page_gets_each_message_once_over_restarts_of_the_server(tmp_path: Path) -> None:
    """As an EventSource does it: reconnect with the last id, until it is answered."""
    seen: list[str] = []
    last = ""
    data = tmp_path / "data"
    for restart in range(3):
        with station_process(data) as station:
            async with event_stream(
                station.url, events(), **({"Last_Event_ID": last} if last else {})
            ) as stream:
                assert stream.status == 200
                for number in range(5):
                    path = f"/channel/news/message/m{restart}-{number}"
                    assert (await async_ask(station.url, "PUT", path, b"1")).status == 200
                for _ in range(4 if restart < 2 else 7):
                    event = await stream.message()
                    seen.append(event.json()["messageID"])
                    last = event.id
                    if len(seen) == 15:
                        break
                station.signal(signal.SIGKILL if restart else signal.SIGTERM)
                await station.exit_code()
    expected = [f"m{restart}-{number}" for restart in range(3) for number in range(5)]
    assert seen == expected
