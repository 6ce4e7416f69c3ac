"""The verbs of subscriptions in both clients, against a real station and a real endpoint."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.helpers.server import background_station
from tests.helpers.waiting import eventually
from waystation import AsyncWaystation, Waystation
from waystation.client.async_operations import AsyncOperation
from waystation.client.async_subscriptions import AsyncSubscriptions
from waystation.client.sync_operations import Operation
from waystation.client.sync_subscriptions import Subscriptions
from waystation.config import Config, HttpConfig, StoreConfig, SubscriptionConfig
from waystation.errors import (
    ConflictError,
    EndpointInvalidError,
    GroupCleanError,
    InvalidInputError,
    NotParkedError,
    OperationEndedError,
    OperationNotFoundError,
    SubscriptionNotFoundError,
    TopicSubscribedError,
    WaitTimeoutError,
)
from waystation.testing.endpoint import Answer, FakeEndpoint
from waystation.testing.station import quick_settings

NEVER = 403
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Stage:
    """A client, and a grouped topic and an endpoint for it."""

    ws: AsyncWaystation
    url: str
    endpoint: FakeEndpoint
    topic: str
    name: str

    async def subscribe(self, **options: Any) -> Any:
        given = {"topic": self.topic, "endpoint": self.endpoint.url, **options}
        return await self.ws.subscriptions.create(self.name, **given)

    async def produce(self, *ids: str) -> None:
        for each in ids:
            group = each.rpartition("-")[0]
            await self.ws.topics.produce(self.topic, {"id": each}, group=group, id=each)

    async def park(self, group: str = "g", *, count: int = 3) -> None:
        """Some messages of a group, all of them dead letters."""
        self.endpoint.plan = [NEVER]
        await self.produce(*(f"{group}-{n}" for n in range(count)))
        await self.ws.subscriptions.wait(self.name, group=group, state="parked", at_most="10s")

        async def are_dead() -> bool:
            return await self.dead(group) == count

        await eventually(are_dead, timeout=10)

    async def dead(self, group: str) -> int:
        return (await self.ws.subscriptions.group(self.name, group)).dead

    async def in_thread(self, work: Callable[[Waystation], Any]) -> Any:
        """The same with the ordinary client."""

        def run() -> Any:
            with Waystation(self.url) as ws:
                return work(ws)

        return await asyncio.to_thread(run)


@pytest.fixture(scope="module")
def station_url(module_store_settings: Config) -> Any:
    # It does not wait for endpoints that hang when it stops.
    settings = replace(module_store_settings, subscriptions=SubscriptionConfig(grace_seconds=0.05))
    with background_station(settings) as running:
        yield running.url


@asynccontextmanager
async def staged(url: str) -> AsyncIterator[Stage]:
    number = next(_numbers)
    async with AsyncWaystation(url) as ws, FakeEndpoint() as endpoint:
        topic = f"topic-{number}"
        await ws.topics.create(topic, partitions=4, grouped=True)
        yield Stage(ws, url, endpoint, topic, f"sub-{number}")


def test_both_clients_have_the_same_verbs() -> None:
    for ours, theirs in ((AsyncSubscriptions, Subscriptions), (AsyncOperation, Operation)):
        verbs = {name for name in vars(ours) if not name.startswith("_")}
        assert verbs == {name for name in vars(theirs) if not name.startswith("_")}
        for verb in verbs:
            one, other = getattr(ours, verb), getattr(theirs, verb)
            if callable(one):
                assert [*inspect.signature(one).parameters] == [
                    *inspect.signature(other).parameters
                ]


async def test_a_subscription_is_defined_changed_and_deleted(station_url: str) -> None:
    async with staged(station_url) as stage:
        subs = stage.ws.subscriptions
        made = await stage.subscribe(retry={"attempts": 3, "first_seconds": 9}, poison="park")
        assert made.secret.startswith("whsec_")
        assert (made.shards, made.options["retry"]["attempts"]) == (4, 3)
        changed = await subs.change(stage.name, poison="skip", retry={"attempts": 1})
        assert changed.options["retry"]["first_seconds"] == 9, "what is not named stays"
        assert (changed.options["poison"], changed.options["retry"]["attempts"]) == ("skip", 1)
        assert (await subs.get(stage.name)) == changed
        with pytest.raises(ConflictError):
            await subs.change(stage.name, version=made.version, poison="park")
        moved = await subs.change(stage.name, endpoint="channel:news")
        assert (moved.endpoint, moved.options) == ("channel:news", changed.options)
        assert stage.name in [each.name async for each in subs.list()]
        with pytest.raises(TopicSubscribedError):
            await stage.ws.topics.delete(stage.topic)
        await subs.delete(stage.name)
        with pytest.raises(SubscriptionNotFoundError):
            await subs.get(stage.name)


async def test_what_cannot_be_is_refused_by_its_own_error(station_url: str) -> None:
    async with staged(station_url) as stage:
        subs = stage.ws.subscriptions
        with pytest.raises(EndpointInvalidError) as refused:
            await stage.subscribe(endpoint="ftp://x/")
        assert refused.value.field == "endpoint"
        await stage.subscribe(endpoint="channel:news")
        with pytest.raises(GroupCleanError):
            await subs.skip(stage.name, group="g")
        with pytest.raises(NotParkedError):
            await subs.redrive(stage.name, group="g")
        with pytest.raises(OperationNotFoundError):
            await subs.operation(stage.name, "nobody")
        for naive in (datetime(2030, 1, 1), "2030"):
            with pytest.raises(InvalidInputError):
                await subs.redrive(stage.name, failed_after=naive)  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError):
            await subs.get("../keys")


async def test_it_begins_at_the_end_at_the_beginning_or_at_a_time(station_url: str) -> None:
    async with staged(station_url) as stage:
        await stage.produce("old-0")
        middle = datetime.now(UTC) + timedelta(milliseconds=20)
        await asyncio.sleep(0.05)  # The store's clock has passed it.
        await stage.produce("new-0")
        subs, given = stage.ws.subscriptions, {"topic": stage.topic, "endpoint": stage.endpoint.url}
        await subs.create(f"{stage.name}-all", start="beginning", **given)  # type: ignore[arg-type]
        await subs.create(f"{stage.name}-some", start=middle, **given)  # type: ignore[arg-type]
        await subs.create(f"{stage.name}-none", **given)  # type: ignore[arg-type]
        await stage.endpoint.until(3)
        await stage.produce("last-0")
        seen: dict[str, set[str]] = {}
        for each in await stage.endpoint.until(6):
            name = each.headers["waystation-subscription"].rpartition("-")[2]
            seen.setdefault(name, set()).add(each.headers["waystation-id"])
        assert seen == {
            "all": {"old-0", "new-0", "last-0"},
            "some": {"new-0", "last-0"},
            "none": {"last-0"},
        }


async def test_a_group_that_fails_is_seen_explained_and_redriven(station_url: str) -> None:
    async with staged(station_url) as stage:
        subs = stage.ws.subscriptions
        await stage.subscribe()
        await stage.park()
        found = await subs.group(stage.name, "g")
        assert found.head is not None
        assert (found.head.id, found.head.failure, found.dead) == ("g-0", "403", 3)
        assert [each.group async for each in subs.groups(stage.name, state="parked")] == ["g"]
        assert [each.group async for each in subs.groups(stage.name, state="retrying")] == []
        letters = [each async for each in subs.dead_letters(stage.name, group="g", payload=True)]
        assert [(each.id, each.state) for each in letters] == [
            ("g-0", "parked"),
            ("g-1", "behind"),
            ("g-2", "behind"),
        ]
        assert letters[1].message is not None
        assert letters[1].message.payload == b'{"id":"g-1"}'
        heads = [each.id async for each in subs.dead_letters(stage.name, cause="403")]
        assert heads == ["g-0"]
        standing = await subs.shards(stage.name)
        assert (standing.parked, standing.dead, standing.lag, len(standing.shards)) == (1, 3, 0, 4)
        assert (await subs.why(stage.name, group="g")).code == "parked"
        assert (await subs.why(stage.name, message="g-1")).facts["head"]["id"] == "g-0"
        assert (await subs.why(stage.name, shard=0)).subject == "shard"

        counted = await subs.redrive(stage.name, message="g-1", dry_run=True)
        assert (counted.count, counted.id, counted.ended) == (2, "", True)
        assert await counted.wait() == counted.info
        stage.endpoint.plan = [200]
        redrive = await subs.redrive(stage.name, message="g-1")
        done = await redrive.wait("10s")
        assert (done.state, done.count, redrive.progress.settled) == ("done", 2, 2)
        assert await stage.dead("g") == 1, "what was not asked for is parked still"
        await (await subs.redrive(stage.name)).wait("10s")
        await subs.wait(stage.name, group="g", state="clean", at_most="10s")
        kinds = [each.kind async for each in subs.operations(stage.name)]
        assert kinds == ["redrive", "redrive"]
        with pytest.raises(OperationEndedError):
            await redrive.cancel()


async def test_the_ordinary_client_does_the_same(station_url: str) -> None:
    async with staged(station_url) as stage:
        await stage.subscribe()
        await stage.park()
        stage.endpoint.plan = [200]

        def operate(ws: Waystation) -> tuple[int, int, str, list[str]]:
            subs = ws.subscriptions
            skipped = subs.skip(stage.name, group="g").wait("10s")
            subs.wait(stage.name, group="g", state="clean", at_most="10s")
            redriven = subs.redrive(stage.name).wait("10s")
            codes = [subs.why(stage.name, message=f"g-{n}").facts["how"] for n in range(3)]
            return skipped.count, redriven.count, redriven.state, codes

        skipped, redriven, state, codes = await stage.in_thread(operate)
        assert (skipped, redriven, state) == (1, 0, "done")
        assert codes == ["skipped", "delivered", "delivered"]


async def test_a_wait_that_is_over_says_so(station_url: str) -> None:
    async with staged(station_url) as stage:
        subs = stage.ws.subscriptions
        await stage.subscribe()
        with pytest.raises(WaitTimeoutError, match="is clean, not parked"):
            await subs.wait(stage.name, group="g", state="parked", at_most="200ms")
        await stage.park()
        stage.endpoint.plan = [Answer(200, delay_seconds=0.5)]
        redrive = await subs.redrive(stage.name, group="g")
        with pytest.raises(WaitTimeoutError):
            await redrive.wait("200ms")
        assert not (await redrive.get()).ended
        assert (await redrive.wait("20s")).progress.settled == 3


async def test_a_pause_says_until_when_and_why(station_url: str) -> None:
    async with staged(station_url) as stage:
        subs = stage.ws.subscriptions
        await stage.subscribe()
        until = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
        paused = await subs.pause(stage.name, until=until, reason="stocktaking")
        assert paused.paused_until_ms == until.timestamp() * 1000
        why = await subs.why(stage.name)
        assert (why.code, why.facts["reason"]) == ("paused", "stocktaking")
        assert not (await subs.resume(stage.name)).paused


async def test_an_operation_is_opened_again_and_paused(station_url: str) -> None:
    async with staged(station_url) as stage:
        subs = stage.ws.subscriptions
        await stage.subscribe()
        await stage.park()
        stage.endpoint.plan = [Answer(hang=True)]
        begun = await subs.redrive(stage.name, rate=0.001)
        same = await subs.operation(stage.name, begun.id)
        assert (await same.pause()).state == "paused"
        assert (await same.resume()).state == "begun"
        assert (await same.cancel()).state == "cancelled"
        assert (begun.ended, (await begun.get()).ended) == (False, True)


async def test_a_purge_a_reset_a_sample_and_a_new_secret(station_url: str) -> None:
    async with staged(station_url) as stage:
        subs = stage.ws.subscriptions
        made = await stage.subscribe()
        await stage.park()
        late = datetime.now(UTC) + timedelta(hours=1)
        assert (await subs.purge(stage.name, failed_after=late, dry_run=True)).count == 0
        assert (await (await subs.purge(stage.name, group="g")).wait("10s")).count == 3
        stage.endpoint.plan = [200]
        before = len(stage.endpoint.received)
        assert (await subs.reset(stage.name, to="beginning")).state == "done"
        again = (await stage.endpoint.until(before + 3))[before:]
        assert [each.headers["waystation-id"] for each in again] == ["g-0", "g-1", "g-2"]
        assert all(each.headers["webhook-id"].split(":")[1] == "2" for each in again)
        sample = await subs.test(stage.name)
        assert (sample.status, sample.problem) == (200, "")
        secret = await subs.rotate_secret(stage.name)
        assert secret.startswith("whsec_")
        assert secret != made.secret


async def test_a_station_that_restarts_is_waited_for(tmp_path: Path) -> None:
    """What waits for a group hears of it from the station that comes after."""
    settings = quick_settings(str(tmp_path), store=StoreConfig(durability="disk"))
    async with FakeEndpoint(plan=[NEVER]) as endpoint:
        with background_station(settings) as first:
            port = first.port
            async with AsyncWaystation(first.url) as ws:
                await ws.topics.create("orders", grouped=True)
                await ws.subscriptions.create("crm", topic="orders", endpoint=endpoint.url)
            waiting_at = first.url
        async with AsyncWaystation(waiting_at) as ws:
            wait = asyncio.create_task(
                ws.subscriptions.wait("crm", group="g", state="parked", at_most="30s")
            )
            await asyncio.sleep(0)
            again = quick_settings(
                str(tmp_path),
                store=StoreConfig(durability="disk"),
                http=HttpConfig(port=port),
            )
            with background_station(again):
                await ws.topics.produce("orders", {}, group="g", id="g-0")
                assert (await wait).state == "parked"
