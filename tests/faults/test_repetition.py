"""The same request again, or too late, has a typed outcome and no second effect (F-25).

Over HTTP, as clients meet it. Time is moved by the time machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.helpers.http import Answer, AsyncWire, async_ask, async_wire, async_wires, request_bytes
from waystation.channels.model import EXPIRY_MARGIN_S, encode_handle
from waystation.config import ChannelConfig
from waystation.testing import serving
from waystation.testing.station import Serving, quick_settings

EXPIRE_SECONDS = 600
#: A little more than messages, and subscribers who do not come back, are kept.
LIFETIME_SECONDS = EXPIRE_SECONDS + EXPIRY_MARGIN_S + 1

SUBSCRIBER = "/channel/ch/subscription/polling/s"
NOT_FOUND = "dsps.storage.subscription-not-found"


class Client:
    """One client of channel `ch` with its subscriber `s`."""

    def __init__(self, wire: AsyncWire, server: Serving) -> None:
        self.wire = wire
        self.url = server.url
        self._machine = server.node.opened.time_machine

    async def publish(self, message: str, content: bytes = b"1") -> Answer:
        return await self.wire.ask("PUT", f"/channel/ch/message/{message}", content)

    async def subscribe(self) -> Answer:
        return await self.wire.ask("PUT", SUBSCRIBER)

    async def unsubscribe(self) -> Answer:
        return await self.wire.ask("DELETE", SUBSCRIBER)

    async def fetch(self, query: str = "") -> Answer:
        return await self.wire.ask("GET", f"{SUBSCRIBER}{query}")

    async def fetched(self) -> list[tuple[str, Any]]:
        """Ids and contents of the unread messages."""
        messages = (await self.fetch()).json()["messages"]
        return [(message["messageID"], message["content"]) for message in messages]

    async def ack(self, handle: str) -> Answer:
        return await self.wire.ask("DELETE", f"{SUBSCRIBER}/message?ackHandle={handle}")

    async def advance(self, seconds: float) -> None:
        assert self._machine is not None
        await self._machine.advance(seconds)


@asynccontextmanager
async def a_client(folder: Path) -> AsyncIterator[Client]:
    """A client with a fresh subscriber, on a station of its own."""
    settings = quick_settings(
        str(folder), time_machine=True, channels=ChannelConfig(expire_seconds=EXPIRE_SECONDS)
    )
    async with serving(settings) as server, async_wire(server.url) as wire:
        client = Client(wire, server)
        assert (await client.subscribe()).status == 200
        yield client


def is_not_found(answer: Answer) -> bool:
    return answer.status == 404 and answer.json()["code"] == NOT_FOUND


async def test_a_message_published_again_is_answered_the_same_and_kept_once(
    tmp_path: Path,
) -> None:
    async with a_client(tmp_path) as client:
        first = await client.publish("m", b'{"total":7}')
        again = await client.publish("m", b'{"total":7}')

        assert (first.status, first.body) == (200, b'{"channelID":"ch","messageID":"m"}\n')
        assert (again.status, again.body) == (first.status, first.body)
        assert await client.fetched() == [("m", {"total": 7})]


async def test_the_first_content_under_an_id_wins(tmp_path: Path) -> None:
    async with a_client(tmp_path) as client:
        await client.publish("m", b'"first"')
        assert (await client.publish("m", b'"second"')).status == 200

        assert await client.fetched() == [("m", "first")]


async def test_a_repetition_that_is_not_json_is_refused_like_any_other(tmp_path: Path) -> None:
    async with a_client(tmp_path) as client:
        await client.publish("m", b"1")
        answer = await client.publish("m", b"{")

        assert answer.status == 400
        assert answer.json()["code"] == "dsps.storage.message-json-malformed"
        assert await client.fetched() == [("m", 1)]


async def test_fifty_who_publish_the_same_id_at_once_are_one(tmp_path: Path) -> None:
    async with a_client(tmp_path) as client, async_wires(client.url, 50) as wires:
        answers = await asyncio.gather(
            *(
                wire.ask("PUT", "/channel/ch/message/m", b"%d" % number)
                for number, wire in enumerate(wires)
            )
        )

        assert {(answer.status, answer.body) for answer in answers} == {
            (200, b'{"channelID":"ch","messageID":"m"}\n')
        }
        [(message, content)] = await client.fetched()
        assert message == "m"
        assert content in range(50)
        # One message took one step of the clock: the next one follows it without a gap.
        await client.publish("next")
        assert await client.fetched() == [("m", content), ("next", 1)]
        assert "lostMessages" not in (await client.fetch()).json()


async def test_a_message_published_again_after_its_ack_is_not_delivered_again(
    tmp_path: Path,
) -> None:
    async with a_client(tmp_path) as client:
        await client.publish("m")
        await client.ack((await client.fetch()).json()["ackHandle"])
        assert (await client.publish("m")).status == 200

        assert await client.fetched() == []


async def test_an_id_is_remembered_as_long_as_its_message_and_then_new(tmp_path: Path) -> None:
    async with a_client(tmp_path) as client:
        await client.publish("m", b'"old"')
        await client.advance(EXPIRE_SECONDS)
        await client.publish("m", b'"too early"')
        assert await client.fetched() == [("m", "old")]

        await client.advance(EXPIRY_MARGIN_S + 1)
        assert (await client.publish("m", b'"new"')).status == 200
        assert await client.fetched() == [("m", "new")]


async def test_an_ack_may_be_repeated_and_never_moves_backwards(tmp_path: Path) -> None:
    async with a_client(tmp_path) as client:
        for message in ("a", "b", "c"):
            await client.publish(message)
        partial = (await client.fetch("?max=1")).json()["ackHandle"]
        whole = (await client.fetch("?max=2")).json()["ackHandle"]

        for handle in (partial, partial, whole, whole, partial):
            answer = await client.ack(handle)
            assert (answer.status, answer.body) == (204, b"")

        assert await client.fetched() == [("c", 1)]


async def test_fifty_who_acknowledge_at_once_skip_nothing(tmp_path: Path) -> None:
    async with a_client(tmp_path) as client, async_wires(client.url, 50) as wires:
        for message in ("a", "b", "c"):
            await client.publish(message)
        handles = [(await client.fetch(f"?max={most}")).json()["ackHandle"] for most in (1, 2)]
        path = f"{SUBSCRIBER}/message?ackHandle="

        answers = await asyncio.gather(
            *(
                wire.ask("DELETE", f"{path}{handles[number % 2]}")
                for number, wire in enumerate(wires)
            )
        )

        assert {answer.status for answer in answers} == {204}
        assert await client.fetched() == [("c", 1)]


async def test_an_ack_of_what_was_never_published_moves_nothing(tmp_path: Path) -> None:
    """Handles can be made up: they are no signatures. What they may do is decided by the store."""
    async with a_client(tmp_path) as client:
        await client.publish("m")
        assert (await client.ack(encode_handle("ch", "s", 1_000_000))).status == 204

        assert await client.fetched() == [("m", 1)]


async def test_a_subscriber_that_expired_is_gone_for_fetch_and_ack(tmp_path: Path) -> None:
    async with a_client(tmp_path) as client:
        await client.publish("m")
        handle = (await client.fetch()).json()["ackHandle"]
        await client.advance(LIFETIME_SECONDS)

        assert is_not_found(await client.fetch())
        assert is_not_found(await client.ack(handle))
        assert is_not_found(await client.ack(handle))
        # A late ack creates nothing: the name is free, and begins at the present.
        assert is_not_found(await client.fetch())
        assert (await client.subscribe()).status == 200
        assert (await client.ack(handle)).status == 204
        await client.publish("later")
        assert await client.fetched() == [("later", 1)]


async def test_a_subscriber_that_was_deleted_is_gone_for_fetch_and_ack(tmp_path: Path) -> None:
    async with a_client(tmp_path) as client:
        await client.publish("m")
        handle = (await client.fetch()).json()["ackHandle"]

        gone, again = await client.unsubscribe(), await client.unsubscribe()

        assert (gone.status, gone.body) == (again.status, again.body)
        assert gone.json() == {"channelID": "ch", "subscriberID": "s"}
        assert is_not_found(await client.fetch())
        assert is_not_found(await client.ack(handle))
        await client.subscribe()
        assert await client.fetched() == []


async def test_a_poll_whose_subscriber_is_deleted_learns_it_at_once(tmp_path: Path) -> None:
    async with a_client(tmp_path) as client, async_wire(client.url) as poller:
        poller.send(request_bytes("GET", f"{SUBSCRIBER}?timeout=30s"))
        # Deleted before, while or after the poll begins to wait: the outcome is the same.
        async with asyncio.timeout(5):
            await async_ask(client.url, "DELETE", SUBSCRIBER)
            assert is_not_found(await poller.answer())


async def test_an_expired_message_can_still_be_acknowledged(tmp_path: Path) -> None:
    async with a_client(tmp_path) as client:
        await client.publish("m")
        handle = (await client.fetch()).json()["ackHandle"]
        await client.advance(EXPIRE_SECONDS - 1)
        assert await client.fetched() == [("m", 1)]  # The subscriber lives on, the message not.
        await client.advance(EXPIRE_SECONDS - 1)

        for _ in range(2):
            assert (await client.ack(handle)).status == 204

        # It was delivered and acknowledged, so it is not lost.
        fetched = (await client.fetch()).json()
        assert fetched == {"channelID": "ch", "messages": [], "moreMessages": False}


async def test_messages_that_expired_unread_are_told_once(tmp_path: Path) -> None:
    async with a_client(tmp_path) as client:
        for message in ("a", "b", "c"):
            await client.publish(message)
        handle = (await client.fetch("?max=1")).json()["ackHandle"]
        await client.advance(EXPIRE_SECONDS - 1)
        await client.fetch("?max=0")
        await client.advance(EXPIRE_SECONDS - 1)

        first, second = (await client.fetch()).json(), (await client.fetch()).json()

        assert (first["messages"], first["lostMessages"]) == ([], 3)
        assert second == {"channelID": "ch", "messages": [], "moreMessages": False}
        # The handle of one of them comes too late to matter.
        assert (await client.ack(handle)).status == 204
        await client.publish("d")
        assert await client.fetched() == [("d", 1)]


async def test_subscribing_again_keeps_the_place(tmp_path: Path) -> None:
    async with a_client(tmp_path) as client:
        await client.publish("a")
        again = await client.subscribe()

        assert (again.status, again.json()) == (200, {"channelID": "ch", "subscriberID": "s"})
        assert await client.fetched() == [("a", 1)]
