"""Each reason that `why` tells, of a whole station with a real endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.helpers.http import async_ask
from waystation.config import Config, SubscriptionConfig
from waystation.errors import InvalidInputError
from waystation.messages.envelope import Envelope
from waystation.node import Node
from waystation.subscriptions.definition import NewSubscription, SubscriptionOptions
from waystation.subscriptions.desk import Desk
from waystation.subscriptions.explanation import Explanation
from waystation.subscriptions.operating import Operating
from waystation.subscriptions.operation import Asked
from waystation.subscriptions.states import ShardState
from waystation.testing import serving
from waystation.testing.endpoint import Answer, FakeEndpoint
from waystation.testing.station import Serving, quick_settings
from waystation.types.topic import TopicOptions


@pytest.fixture
def settings(tmp_path: Path) -> Config:
    """Of a station that does not wait for endpoints that hang when it stops."""
    return quick_settings(str(tmp_path), subscriptions=SubscriptionConfig(grace_seconds=0.05))


#: Long enough that nothing is tried again while a test looks.
LATER = {"first_seconds": 600.0, "jitter": 0.0}


@dataclass(frozen=True)
class Asking:
    """A station, an endpoint, and the topic `orders`."""

    station: Serving
    endpoint: FakeEndpoint

    @property
    def node(self) -> Node:
        return self.station.node

    @property
    def desk(self) -> Desk:
        return self.station.server._desk

    async def subscribe(self, name: str = "billing", *, shards: int = 1, **options: Any) -> None:
        options = {"retry": LATER, **options}
        new = NewSubscription(
            topic="orders",
            endpoint=self.endpoint.url,
            shards=shards,
            options=msgspec.convert(options, SubscriptionOptions),
        )
        await self.node.subscriptions.subscriptions.create("default", name, new)

    async def produce(self, *ids: str, not_before_ms: int = 0) -> None:
        """The group is what stands before the last dash."""
        envelopes = [
            Envelope(
                id=each,
                project="default",
                data=b"{}",
                group=each.rpartition("-")[0],
                not_before_ms=not_before_ms,
            )
            for each in ids
        ]
        for result in await self.node.producer.produce("default", "orders", envelopes):
            assert not isinstance(result, Exception), result

    async def why(self, name: str = "billing", **about: Any) -> Explanation:
        return await self.desk.why.explain("default", name, **about)

    async def until(self, code: str, name: str = "billing", **about: Any) -> dict[str, Any]:
        """The facts, once the reason has this code."""
        seen = []
        try:
            async with asyncio.timeout(10):
                while True:
                    found = await self.why(name, **about)
                    if found.code == code:
                        assert found.text.endswith(".")
                        return found.facts
                    seen.append(found.code)
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"{code} was never told, but {sorted(set(seen))}") from None

    async def pause(self, **given: Any) -> None:
        """A pause that the shards have heard of."""
        subscriptions, host = self.node.subscriptions.subscriptions, self.node.subscriptions.host
        assert host is not None
        await subscriptions.pause("default", "billing", **given)
        async with asyncio.timeout(10):
            while [each.state for each in host.shards.values()] != [ShardState.PAUSED]:
                await asyncio.sleep(0.01)

    async def operate(self, kind: Any, **asked: Any) -> None:
        await self.node.subscriptions.operations.begin(
            "default", "billing", Asked(kind=kind, **asked)
        )


@asynccontextmanager
async def asking(
    settings: Config, *plan: int | Answer, partitions: int = 1
) -> AsyncIterator[Asking]:
    async with FakeEndpoint(plan=plan or [200]) as endpoint, serving(settings) as station:
        options = TopicOptions(grouped=True)
        await station.node.topics.create(
            "default", "orders", partitions=partitions, options=options
        )
        yield Asking(station, endpoint)


async def test_what_is_delivered_is_settled_and_its_group_is_clean(settings: Config) -> None:
    async with asking(settings) as ask:
        await ask.produce("old-0")
        await ask.subscribe()
        await ask.produce("g-0")
        facts = await ask.until("settled", message="g-0")
        assert (facts["how"], facts["attempt"], facts["position"]) == ("delivered", 1, "0.0.1")
        assert facts["at_ms"] > 0
        assert (await ask.until("settled", message="g-0", group="g"))["how"] == "delivered"
        assert (await ask.until("settled", message="old-0"))["how"] == "before"
        assert (await ask.until("clean", group="g"))["shard"] == 0
        assert (await ask.until("running"))["lag"] == 0
        assert (await ask.until("running", shard=0))["owner"]
        assert (await ask.until("unknown", message="nobody"))["all_seen"]


async def test_a_question_that_makes_no_sense_is_refused(settings: Config) -> None:
    async with asking(settings) as ask:
        await ask.subscribe()
        for about in ({"shard": 1}, {"shard": -1}, {"shard": 0, "group": "g"}):
            with pytest.raises(InvalidInputError) as refused:
                await ask.why(**about)
            assert refused.value.field == "shard"


async def test_a_failing_group_says_when_it_is_tried_again_and_who_waits(
    settings: Config,
) -> None:
    async with asking(settings, Answer(500, body=b"no coins")) as ask:
        await ask.subscribe()
        await ask.produce("g-0", "g-1")
        for about in ({"message": "g-0"}, {"group": "g"}):
            facts = await ask.until("retrying_at", **about)
            assert (facts["id"], facts["attempt"], facts["attempts_max"]) == ("g-0", 2, 6)
            assert facts["failure"] == "500"
            assert facts["due_ms"] > ask.node.clock.now_ms() + 500_000
        facts = await ask.until("waiting_behind", message="g-1")
        assert (facts["head"]["id"], facts["head"]["failure"], facts["state"]) == (
            "g-0",
            "500",
            "retrying",
        )
        assert facts["ahead"] == 1


async def test_a_delayed_message_says_when_it_is_due(settings: Config) -> None:
    async with asking(settings) as ask:
        await ask.subscribe()
        later = ask.node.clock.now_ms() + 3_600_000
        await ask.produce("g-0", not_before_ms=later)
        for about in ({"message": "g-0"}, {"group": "g"}):
            assert (await ask.until("delayed_until", **about))["due_ms"] == later


async def test_a_parked_group_says_why_and_then_who_redrives_it(settings: Config) -> None:
    async with asking(settings, 403) as ask:
        await ask.subscribe()
        await ask.produce("g-0", "g-1", "g-2")
        for about in ({"message": "g-0"}, {"group": "g"}):
            facts = await ask.until("parked", **about)
            assert (facts["id"], facts["failure"]) == ("g-0", "403")
            assert facts["failed_ms"] > 0
        await ask.until("waiting_behind", message="g-2")
        assert (await ask.until("parked", group="g"))["behind"] == 2

        ask.endpoint.plan = [500]
        await ask.operate("redrive", group="g")
        for about in ({"message": "g-0"}, {"group": "g"}):
            facts = await ask.until("redriving", **about)
            assert (facts["attempt"], bool(facts["operation"])) == (2, True)
        assert (await ask.until("waiting_behind", message="g-1"))["state"] == "redriving"


async def test_a_dead_letter_that_stands_alone_says_so(settings: Config) -> None:
    async with asking(settings, 403) as ask:
        await ask.subscribe(poison="skip")
        await ask.produce("g-0")
        facts = await ask.until("dead", message="g-0")
        assert (facts["failure"], facts["shard"]) == ("403", 0)
        await ask.until("clean", group="g")
        ask.endpoint.plan = [500]
        await ask.operate("redrive", message="g-0")
        assert (await ask.until("redriving", message="g-0"))["attempt"] == 2


async def test_what_was_skipped_or_purged_is_settled_by_an_operation(settings: Config) -> None:
    async with asking(settings, 403) as ask:
        await ask.subscribe()
        await ask.produce("g-0", "g-1", "h-0")
        await ask.until("parked", group="g")
        await ask.until("parked", group="h")
        await ask.operate("skip", group="g")
        facts = await ask.until("settled", message="g-0")
        assert (facts["how"], bool(facts["operation"])) == ("skipped", True)
        await ask.operate("purge", group="h")
        facts = await ask.until("settled", message="h-0")
        assert (facts["how"], bool(facts["operation"])) == ("purged", True)


async def test_a_message_without_a_group_says_when_it_is_tried_again(settings: Config) -> None:
    async with asking(settings, 500) as ask:
        await ask.subscribe(grouped=False)
        await ask.produce("g-0")
        facts = await ask.until("retrying_at", message="g-0")
        assert (facts["attempt"], facts["failure"]) == (2, "500")


async def test_a_slow_endpoint_has_one_under_way_and_others_whose_turn_will_come(
    settings: Config,
) -> None:
    async with asking(settings, Answer(hang=True)) as ask:
        await ask.subscribe(concurrency_max=1)
        await ask.produce("a-0")
        await ask.endpoint.until(1)
        await ask.produce("b-0", "c-0")
        await ask.until("under_way", message="a-0")
        facts = await ask.until("not_read_yet", message="c-0")
        assert (facts["behind"], facts["position"]) == (2, "0.0.2")
        assert (await ask.why()).code == "running"
        assert (await ask.why(shard=0)).facts["lag"] == 3


async def test_a_head_that_is_tried_again_is_under_way(settings: Config) -> None:
    async with asking(settings, 500, Answer(hang=True)) as ask:
        await ask.subscribe(retry={"first_seconds": 0.0, "jitter": 0.0})
        await ask.produce("a-0")
        assert (await ask.until("under_way", group="a"))["attempt"] == 2
        assert (await ask.until("under_way", message="a-0"))["attempt"] == 2


EVERYWHERE: tuple[dict[str, Any], ...] = (
    {},
    {"shard": 0},
    {"group": "late"},
    {"message": "late-0"},
)


async def test_a_pause_is_told_everywhere_with_its_end_and_its_reason(settings: Config) -> None:
    async with asking(settings) as ask:
        await ask.subscribe()
        until = ask.node.clock.now_ms() + 3_600_000
        await ask.pause(until_ms=until, reason="the bank is closed")
        await ask.produce("late-0")
        for about in EVERYWHERE:
            facts = await ask.until("paused", **about)
            assert (facts["until_ms"], facts["reason"]) == (until, "the bank is closed")


@pytest.mark.slow
async def test_what_is_due_and_paused_tells_the_pause_and_what_is_parked_stays_parked(
    settings: Config,
) -> None:
    async with asking(settings, 500, 403) as ask:
        await ask.subscribe(retry={"first_seconds": 3.0, "jitter": 0.0})
        await ask.produce("g-0")
        await ask.until("retrying_at", group="g")
        await ask.produce("h-0")
        await ask.until("parked", group="h")
        await ask.pause()
        assert (await ask.until("paused", group="g"))["id"] == "g-0"
        assert (await ask.why(group="h")).code == "parked"


async def test_a_frozen_shard_says_why(settings: Config) -> None:
    async with asking(settings) as ask:
        await ask.subscribe()
        subscription = await ask.node.subscriptions.subscriptions.get("default", "billing")
        opened = ask.node.opened
        operating = Operating(opened.store, dataset=opened.dataset)
        await operating.freeze(subscription.place(0), "it is moved")
        await ask.produce("late-0")
        for about in EVERYWHERE:
            assert (await ask.until("frozen", **about))["cause"] == "it is moved"


async def test_without_a_delivery_node_that_is_told(tmp_path: Path) -> None:
    settings = quick_settings(str(tmp_path), subscriptions=SubscriptionConfig(deliver=False))
    async with asking(settings) as ask:
        await ask.subscribe()
        await ask.produce("late-0")
        for about in EVERYWHERE:
            facts = await ask.until("unowned", **about)
            assert facts["delivery_nodes"] == 0
        assert (await ask.why()).text == "No delivery node is alive."


@pytest.mark.parametrize(
    ("option", "status", "code"),
    [("retry_max_bytes", 500, "retry_full"), ("dead_max_bytes", 403, "dead_full")],
)
async def test_a_shard_without_room_says_which_room(
    settings: Config, option: str, status: int, code: str
) -> None:
    async with asking(settings, status) as ask:
        bound: dict[str, Any] = {option: 1}
        await ask.subscribe(**bound)
        await ask.produce("g-0")
        facts = await ask.until(code)
        assert (facts["bytes"] > 1, facts["max_bytes"]) == (True, 1)
        await ask.produce("late-0")
        for about in EVERYWHERE:
            await ask.until(code, **about)
        assert (await ask.why(group="g")).code in ("retrying_at", "parked"), "heads go on"


@pytest.mark.slow
async def test_a_barrier_names_the_shards_that_are_behind_and_then_that_it_stays(
    settings: Config,
) -> None:
    async with asking(settings, Answer(hang=True), partitions=4) as ask:
        await ask.subscribe(shards=4, timeout_seconds=3600.0)
        await ask.produce("g-0")
        await ask.endpoint.until(1)
        topic = await ask.node.topics.get("default", "orders")
        await ask.node.topics.add_storage_topic(
            "default", "orders", 6, version=topic.version, force=True
        )
        await ask.node.topics.switch_produce("default", "orders", force=True)
        owner = (await ask.until("under_way", message="g-0"))["shard"]
        other = (owner + 1) % 4
        facts = await ask.until("barrier", shard=other)
        assert (facts["storage"], facts["shards"], facts["behind"]) == (1, 4, [owner])
        assert (await ask.why(shard=owner)).code == "running"

        ask.endpoint.plan = [200]
        await ask.operate("reset", to="end")
        for about in ({}, {"shard": other}, {"shard": owner}):
            assert (await ask.until("inconsistent_shards", **about))["storage"] == 1


async def test_an_endpoint_that_wants_nothing_more_is_told_everywhere(settings: Config) -> None:
    async with asking(settings, 410) as ask:
        await ask.subscribe()
        await ask.produce("late-0")
        for about in EVERYWHERE:
            facts = await ask.until("endpoint_disabled", **about)
            assert facts["target"].startswith("127.0.0.1:")
            assert "410" in facts["cause"]


async def test_an_endpoint_that_asked_for_time_is_told_with_the_seconds(
    settings: Config,
) -> None:
    held = Answer(429, headers=(("retry-after", "600"),))
    async with asking(settings, held) as ask:
        await ask.subscribe()
        await ask.produce("g-0")
        await ask.until("endpoint_held")
        await ask.produce("late-0")
        for about in EVERYWHERE:
            assert 0 < (await ask.until("endpoint_held", **about))["seconds"] <= 30


async def test_an_open_breaker_is_told_with_when_it_tries_again(settings: Config) -> None:
    async with asking(settings, 500) as ask:
        await ask.subscribe()
        await ask.produce(*(f"g{n}-0" for n in range(300)))
        facts = await ask.until("breaker_open", shard=0)
        assert 0 <= facts["seconds"] <= 30
        assert facts["target"].startswith("127.0.0.1:")


@pytest.mark.parametrize("verb", ["resume", "test"])
async def test_breaker_of_an_endpoint_declared_repaired_closes_at_once(
    settings: Config, verb: str
) -> None:
    """`shards` and `/readyz` show the open breaker; the operator does not wait for a probe."""
    async with asking(settings, 500) as ask:
        await ask.subscribe(concurrency_max=4)
        await ask.produce(*(f"g{number}-0" for number in range(220)))
        await ask.until("breaker_open", shard=0)
        (standing,) = ask.node.subscriptions.standings._standings.values()
        standing.breaker._open_until = standing.breaker._probed_at = 1e12
        overview = await ask.desk.overview.of("default", "billing")
        assert [(each.state, each.reason) for each in overview.shards] == [("held", "breaker_open")]
        url = ask.station.url
        notes = (await async_ask(url, "GET", "/readyz")).json()["notes"]
        assert [note for note in notes if "circuit breakers of 1 endpoint" in note]

        before = len(ask.endpoint.received)
        if verb == "test":
            await async_ask(url, "POST", f"/v1/subscriptions/billing/{verb}")
            assert not standing.breaker.is_closed, "the test failed as well"
        ask.endpoint.plan = [200]
        await ask.produce("late-0")
        await async_ask(url, "POST", f"/v1/subscriptions/billing/{verb}")

        await ask.until("settled", message="late-0")
        assert standing.breaker.is_closed
        assert len(ask.endpoint.received) > before


async def test_a_rate_that_is_used_up_is_told(settings: Config) -> None:
    async with asking(settings) as ask:
        await ask.subscribe(rate=0.01)
        await ask.produce("g-0")
        await ask.until("settled", message="g-0")
        await ask.produce("late-0")
        for about in EVERYWHERE:
            assert (await ask.until("throttled", **about))["rate"] == 0.01


async def test_a_topic_that_went_away_under_its_subscription_is_told(
    settings: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asking(settings) as ask:
        # Delete and purge read the list of subscriptions before the creation.
        readers = ask.node.topics._readers
        earlier = await readers.names("default", "orders")

        async def names(*_: str) -> list[str]:
            return earlier

        monkeypatch.setattr(readers, "names", names)
        await ask.subscribe()
        await ask.node.topics.delete("default", "orders")
        for about in ({}, {"shard": 0}, {"group": "g"}):
            assert (await ask.until("topic_deleted", **about))["topic"] == "orders"
        await ask.node.topics.purge("default", "orders")
        for about in ({}, {"shard": 0}, {"group": "g"}):
            await ask.until("topic_missing", **about)
        await ask.until("unknown", message="g-0")
