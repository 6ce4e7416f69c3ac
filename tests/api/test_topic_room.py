"""Producing over HTTP where there is no room, or no store: what is told, and what goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.helpers.http import Answer, async_ask
from tests.helpers.server import BATCH, TopicClient, problem
from tests.helpers.store_faults import Fate, Proxy, proxy_to
from waystation.config import Config, StoreConfig
from waystation.testing import private_server, serving
from waystation.testing.station import Serving, quick_settings
from waystation.topics.router import hash_of
from waystation.types.topic import TopicOptions


def test_a_full_log_is_507_with_the_name_of_its_policy(open_url: str) -> None:
    client = TopicClient(open_url)
    client.create(partitions=1, max_bytes=1000)
    for _ in range(4):
        assert client.produce(b"x" * 150).status == 200
    for answer in (client.produce(b"x" * 500), client.produce_batch([{"text": "x" * 500}] * 2)):
        assert problem(answer) == (507, "log.full")
        assert answer.json()["policy"] == "refuse"
        assert answer.header("retry-after") == "1"
    assert client.state()["messages"] == 4


def test_of_a_batch_what_found_room_is_there_and_the_rest_is_told_one_by_one(
    open_url: str,
) -> None:
    client = TopicClient(open_url)
    client.create(partitions=2, max_bytes=1000)
    homes = {
        group: client.ask("GET", f"{client.path}/where?group={group}").json()["positions"][0]
        for group in "abcdefgh"
    }
    full = next(group for group in homes if homes[group]["partition"] == 0)
    free = next(group for group in homes if homes[group]["partition"] == 1)
    client.produce(b"x" * 800, {"Waystation-Group": full})

    answer = client.produce_batch(
        [{"id": "1", "group": full, "text": "y" * 500}, {"id": "2", "group": free, "text": "z"}]
    )

    assert answer.status == 200
    refused, receipt = answer.json()["results"]
    assert (refused["id"], refused["error"]["code"]) == ("1", "log.full")
    assert "at most 1,000 bytes" in refused["error"]["detail"]
    assert "raise `max_bytes` of the topic" in refused["error"]["hint"]
    assert (receipt["id"], receipt["partition"]) == ("2", 1)


async def test_of_a_batch_refused_for_several_reasons_each_message_is_told_its_own(
    settings: Config,
) -> None:
    async with serving(settings) as running:
        options = TopicOptions(max_bytes=1000)
        topic = await running.node.topics.create("default", "t", partitions=2, options=options)
        # Sealed, and nothing follows: the catalogue came from a backup.
        await running.node.logs.seal(topic.log(topic.target), 1, 1)
        homes = {topic.target.router.partition_of(hash_of(group)): group for group in "abcdefgh"}
        path, kind = "/v1/topics/t/messages", {"Content-Type": BATCH}
        large = [{"group": homes[0], "text": "x" * 800}]
        small = [{"id": str(n), "group": homes[n], "text": "x" * 500} for n in range(2)]

        def produce(messages: object) -> Awaitable[Answer]:
            return async_ask(
                running.url, "POST", path, json.dumps({"messages": messages}).encode(), kind
            )

        assert (await produce(large)).status == 200
        answer = await produce(small)

        assert answer.status == 200
        told = [(each["id"], each["error"]["code"]) for each in answer.json()["results"]]
        assert told == [("0", "log.full"), ("1", "log.sealed")]
        assert problem(await produce(small[:1])) == (507, "log.full")
        assert problem(await produce(small[1:])) == (409, "log.sealed")


def test_a_topic_that_drops_makes_room_and_counts_nothing_that_nobody_needed(
    open_url: str,
) -> None:
    client = TopicClient(open_url)
    client.create(partitions=1, max_bytes=1000, full_policy="drop_and_count")
    for _ in range(20):
        assert client.produce(b"x" * 150).status == 200
    state = client.state()
    assert state["bytes"] <= 1000
    assert state["dropped"] == 0
    first = state["partitions"][0]["first"]
    assert first > 0
    answer = client.browse(partition=0, offset=0)
    assert problem(answer) == (400, "log.offset-out-of-range")
    assert (answer.json()["first"], answer.json()["end"]) == (first, 20)


async def test_a_full_store_is_507_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    async with topic_station(tmp_path) as (running, path):
        store = running.node.opened.store
        await store.call("CONFIG", "SET", "maxmemory", "1")
        for body, headers in ((b"x", {}), (b'{"messages":[{},{}]}', {"Content-Type": BATCH})):
            answer = await async_ask(running.url, "POST", path, body, headers)
            assert problem(answer) == (507, "store.full")
            assert answer.json()["policy"] == "noeviction"
        await store.call("CONFIG", "SET", "maxmemory", "0")
        assert (await async_ask(running.url, "POST", path, b"x")).status == 200
        found = await async_ask(running.url, "GET", f"{path}?partition=0")
        assert len(found.json()["messages"]) == 1


# -- A store that is away --------------------------------------------------------------------


@asynccontextmanager
async def topic_station(folder: Path, *, url: str = "") -> AsyncIterator[tuple[Serving, str]]:
    """A station of this process with a topic of one partition; and the path of its messages."""
    store = StoreConfig(durability="memory", url=url, call_seconds_max=1.0)
    async with serving(quick_settings(str(folder), store=store)) as running:
        await running.node.topics.create("default", "orders", partitions=1)
        yield running, "/v1/topics/orders/messages"


@asynccontextmanager
async def behind_proxy(folder: Path) -> AsyncIterator[tuple[Serving, str, Proxy]]:
    """The same, with something between station and store that can fail."""
    with private_server() as server:
        async with proxy_to(server.address) as proxy:
            url = f"redis://127.0.0.1:{proxy.address.port}"
            async with topic_station(folder, url=url) as (running, path):
                yield running, path, proxy
                await proxy.set_fates()


@pytest.mark.slow
async def test_a_lost_reply_is_told_as_an_unknown_outcome(tmp_path: Path) -> None:
    async with behind_proxy(tmp_path) as (running, path, proxy):
        assert (await async_ask(running.url, "POST", path, b"1")).status == 200
        for body, headers in ((b"2", {}), (b'{"messages":[{},{}]}', {"Content-Type": BATCH})):
            await running.node.topics.get("default", "orders")
            # Swallowed, not cut: a cut could come with the reply to somebody else's call, before
            # this request has gone out.
            await proxy.set_fates(replies=Fate.SWALLOW)
            answer = await async_ask(running.url, "POST", path, body, headers)
            assert problem(answer) == (503, "store.outcome-unknown")
            assert answer.header("retry-after") == "1"
            await proxy.set_fates()
        found = await async_ask(running.url, "GET", f"{path}?partition=0")
        # They were applied; only nobody could know.
        assert len(found.json()["messages"]) == 4


@pytest.mark.slow
async def test_while_the_store_is_away_produce_is_503_and_later_goes_on(tmp_path: Path) -> None:
    async with behind_proxy(tmp_path) as (running, path, proxy):
        assert (await async_ask(running.url, "POST", path, b"1")).status == 200
        await proxy.set_fates(requests=Fate.CUT)
        proxy.cut()
        answers = [await async_ask(running.url, "POST", path, b"2") for _ in range(2)]
        for answer in answers:
            status, code = problem(answer)
            assert status == 503
            assert code in ("store.unavailable", "store.outcome-unknown")
        await proxy.set_fates()
        async with asyncio.timeout(20):
            # How soon a store that is back is found depends on how long it was away.
            while (answer := await async_ask(running.url, "POST", path, b"3")).status != 200:
                assert problem(answer) == (503, "store.unavailable")
        found = await async_ask(running.url, "GET", f"{path}?partition=0")
        # What was refused never reached the store.
        assert [each["message"]["text"] for each in found.json()["messages"]] == ["1", "3"]
