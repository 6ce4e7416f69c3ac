"""What a process that delivers tells Prometheus: attempts, doubles, and how its shards are."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.helpers.http import async_ask
from tests.helpers.waiting import eventually
from tests.subscriptions.test_dispatch import new_topic, produce, subscribe
from tests.test_examples import ROOT
from waystation.config import Config
from waystation.node import Node
from waystation.subscriptions.backlog import Backlog
from waystation.subscriptions.definition import RetryPolicy
from waystation.subscriptions.names import Place
from waystation.subscriptions.states import ShardState, Verdict
from waystation.subscriptions.survey import Survey
from waystation.subscriptions.tally import NAMES_MAX, OTHER, Labels, Tally
from waystation.telemetry import metrics
from waystation.testing import serving
from waystation.testing.endpoint import FakeEndpoint

PREFIX = "waystation_subscription_"


def told(name: str, **labels: str) -> float | None:
    value: float | None = metrics.registry.get_sample_value(PREFIX + name, labels)
    return value


def summed(name: str, subscription: str) -> float:
    """Over all shards."""
    family = metrics.subscription_figures[name]
    (metric,) = family.collect()
    found = [each for each in metric.samples if each.labels["subscription"] == subscription]
    return sum(each.value for each in found)


def survey_of(node: Node) -> Survey:
    assert node.subscriptions.survey is not None
    return node.subscriptions.survey


@asynccontextmanager
async def delivering(settings: Config, url: str, **options: object) -> AsyncIterator[Node]:
    """A node whose subscription `billing` has all its shards."""
    async with serving(settings) as station:
        node = station.node
        await new_topic(node)
        await subscribe(node, url, **options)
        host = node.subscriptions.host
        assert host is not None
        await eventually(
            lambda: [each.state for each in host.shards.values()] == [ShardState.RUNNING] * 4
        )
        yield node


async def test_attempts_are_counted_by_subscription_and_result(settings: Config) -> None:
    def counts() -> list[float]:
        results = ("done", "again", "dead")
        return [
            told("attempts_total", subscription="billing", result=each) or 0 for each in results
        ]

    before = counts()
    policy = RetryPolicy(attempts=1, first_seconds=0.01)
    async with (
        FakeEndpoint(plan=[500, 500, 200]) as receiver,
        delivering(settings, receiver.url, retry=policy, poison="skip") as node,
    ):
        await produce(node, "g-0")
        await receiver.until(2)
        await produce(node, "g-1")
        await receiver.until(3)
        await eventually(
            lambda: counts() == [a + b for a, b in zip(before, (1, 1, 1), strict=True)]
        )


async def test_a_parked_group_and_what_waits_are_told_by_the_owner(settings: Config) -> None:
    async with (
        FakeEndpoint(plan=[403]) as receiver,
        delivering(settings, receiver.url) as node,
    ):
        await produce(node, "g-0", "g-1", "g-2")
        async with asyncio.timeout(15):
            while summed("dead_messages", "billing") < 3:
                await survey_of(node).look()
        assert summed("parked_groups", "billing") == 1
        assert summed("retrying_groups", "billing") == 0
        assert summed("dead_bytes", "billing") > 0
        assert summed("lag_messages", "billing") == 0
        assert summed("in_flight", "billing") == 0
        assert told("shards", state="running") == 4
        assert told("shards", state="paused") == 0


async def test_lag_and_age_are_those_of_what_is_not_acknowledged(settings: Config) -> None:
    async with (
        FakeEndpoint() as receiver,
        delivering(settings, receiver.url) as node,
    ):
        await produce(node, "g-0")
        await receiver.until(1)
        await node.subscriptions.subscriptions.pause("default", "billing")
        host = node.subscriptions.host
        assert host is not None
        await eventually(
            lambda: {each.state for each in host.shards.values()} == {ShardState.PAUSED}
        )
        await produce(node, "g-1", "g-2", "h-1")
        await asyncio.sleep(0.02)  # Ages are told in milliseconds.
        async with asyncio.timeout(20):
            # What has arrived may yet have to be acknowledged.
            while summed("lag_messages", "billing") != 3:
                await survey_of(node).look()
        assert 0 < summed("oldest_seconds", "billing") < 60
        assert told("shards", state="paused") == 4


async def test_lag_is_told_over_storage_topics(settings: Config) -> None:
    async with (
        FakeEndpoint() as receiver,
        delivering(settings, receiver.url) as node,
    ):
        await produce(node, "g-0")
        await receiver.until(1)
        await node.subscriptions.subscriptions.pause("default", "billing")
        host = node.subscriptions.host
        assert host is not None
        await eventually(
            lambda: {each.state for each in host.shards.values()} == {ShardState.PAUSED}
        )
        await produce(node, "g-1", "h-1", "i-1")
        await node.topics.add_storage_topic("default", "orders", 8)
        await node.topics.switch_produce("default", "orders")
        await produce(node, "g-2", "h-2")
        async with asyncio.timeout(20):
            # What has arrived may yet have to be acknowledged.
            while summed("lag_messages", "billing") != 5:
                await survey_of(node).look()
        await node.subscriptions.subscriptions.resume("default", "billing")
        await receiver.until(6)
        async with asyncio.timeout(15):
            while summed("lag_messages", "billing"):
                await survey_of(node).look()


async def test_a_process_that_has_stopped_tells_nothing_of_shards(settings: Config) -> None:
    async with (
        FakeEndpoint() as receiver,
        delivering(settings, receiver.url) as node,
    ):
        await survey_of(node).look()
        assert told("lag_messages", subscription="billing", shard="3") == 0
    assert told("lag_messages", subscription="billing", shard="3") is None
    assert told("shards", state="running") == 0


async def test_they_are_on_the_page_of_metrics(settings: Config) -> None:
    async with FakeEndpoint() as receiver, serving(settings) as station:
        await new_topic(station.node)
        await subscribe(station.node, receiver.url)
        await produce(station.node, "g-0")
        await receiver.until(1)
        await survey_of(station.node).look()
        page = (await async_ask(station.url, "GET", "/metrics")).body.decode()
        names = set(re.findall(rf"^{PREFIX}(\w+)", page, re.MULTILINE))
        assert {"attempts_total", "shards", *metrics.subscription_figures} <= names


def test_the_page_for_operators_names_every_metric() -> None:
    page = (ROOT / "docs" / "operating" / "subscriptions.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(?:waystation_subscription|…)_(\w+)", page))
    counters = {"attempts_total", "doubles_total", "shards"}
    assert named == {*metrics.subscription_figures, *counters}


def test_names_are_bounded_and_later_ones_share_one() -> None:
    labels = Labels()
    places = [Place("default", f"s{number}", 0, number) for number in range(NAMES_MAX + 5)]
    told = [labels.subscription(each) for each in places]
    assert told == [*(f"s{number}" for number in range(NAMES_MAX)), *[OTHER] * 5]
    assert labels.subscription(places[7]) == "s7"
    assert labels.subscription(Place("shop", "s7", 0, 0)) == OTHER
    assert Labels().subscription(Place("shop", "s7", 0, 0)) == "shop.s7"


def test_shards_have_a_label_of_their_own_up_to_64() -> None:
    labels = Labels()
    assert [labels.shard(Place("default", "s", 0, each)) for each in (0, 63, 64, 1000)] == [
        *("0", "63", OTHER, OTHER)
    ]


def test_a_double_is_counted() -> None:
    place = Place("default", "doubling", 0, 0)
    tally = Tally()
    tally.doubled(place)
    tally.doubled(place)
    tally.attempted(place, Verdict.RELEASE)
    assert told("doubles_total", subscription="doubling") == 2
    assert told("attempts_total", subscription="doubling", result="release") == 1


def test_backlogs_add_up_to_the_oldest() -> None:
    assert Backlog(2, 50) + Backlog(3, 40) == Backlog(5, 40)
    assert Backlog() + Backlog(3, 40) == Backlog(3, 40)
