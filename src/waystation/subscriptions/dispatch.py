"""Dispatch: all that a process has of subscriptions, opened in order and closed in reverse.

Every process can define and operate subscriptions. One that delivers has a host, which takes its
part of all shards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from waystation.catalogue import Catalogue
from waystation.config import SubscriptionConfig
from waystation.delivery.notices import Notices
from waystation.delivery.signing import Secret
from waystation.delivery.states import EndpointStates
from waystation.logs.protocol import record_retention
from waystation.logs.streams import StreamLogs
from waystation.messages.redaction import UNRECORDED
from waystation.runtime.clock import Clock
from waystation.runtime.ids import IdSource
from waystation.store.leases import Lease
from waystation.store.opening import OpenStore
from waystation.subscriptions.backlog import Backlogs
from waystation.subscriptions.commits import Commits
from waystation.subscriptions.definition import Subscription, is_address
from waystation.subscriptions.endpoints.means import Means
from waystation.subscriptions.endpoints.opening import open_endpoint
from waystation.subscriptions.endpoints.protocol import Endpoint
from waystation.subscriptions.endpoints.sample import Sample, send_sample
from waystation.subscriptions.host import Host
from waystation.subscriptions.looking import Looking
from waystation.subscriptions.means import ShardMeans
from waystation.subscriptions.names import Place
from waystation.subscriptions.operations import Operations
from waystation.subscriptions.placement import Patience
from waystation.subscriptions.shard import Shard
from waystation.subscriptions.shard_store import ShardStore
from waystation.subscriptions.standings import Standings
from waystation.subscriptions.states import ShardState
from waystation.subscriptions.subscriptions import EndpointCheck, Subscriptions
from waystation.subscriptions.survey import Survey
from waystation.subscriptions.tally import Labels, Tally
from waystation.subscriptions.upkeep import SubscriptionUpkeep
from waystation.topics.service import TopicService
from waystation.types.common import FullPolicy

_DAY_MS = 86_400_000
#: What notices get that are on their way to their URL when we stop.
_NOTICE_SECONDS_MAX = 1.0


@dataclass(frozen=True, kw_only=True)
class Dispatch:
    """The parts that others use."""

    subscriptions: Subscriptions
    operations: Operations
    upkeep: SubscriptionUpkeep
    standings: Standings
    states: EndpointStates
    endpoints: Endpoints
    background: Background
    identity: IdSource
    #: Who delivers; None: this process does not.
    host: Host | None = None
    #: Who looks at what is delivered here, for metrics.
    survey: Survey | None = None

    @property
    def healthy(self) -> bool:
        """Whether the store has answered lately who delivers; true for who does not."""
        return self.host is None or self.host.healthy

    async def send_sample(self, project: str, name: str) -> Sample:
        """Send one made-up message to the endpoint of a subscription; return request and reply.

        A success closes the breaker of the endpoint on all nodes.
        """
        subscription = await self.subscriptions.get(project, name)
        secrets = await self.endpoints.secrets(subscription)
        means = self.endpoints.means
        sample = await send_sample(subscription, secrets, means, identity=self.identity)
        if not sample.problem:
            # The endpoint accepts messages, so nodes need not wait for the next probe.
            await self.states.declare_repaired(open_endpoint(subscription, (), means).target)
        return sample

    def notes(self) -> list[str]:
        """Return what readiness says of the shards of this process: how many are at a barrier.

        Without names, because readiness is public.
        """
        places = [
            place
            for place, shard in (self.host.shards.items() if self.host is not None else ())
            if shard.state is ShardState.AT_BARRIER
        ]
        if not places:
            return []
        count = len({(place.project, place.subscription) for place in places})
        return [
            (
                f"{len(places)} shards of {count} subscriptions are at a barrier: their topic grew"
                " in a way that their number of shards cannot follow. `waystation subscription why"
                " NAME` says what to do."
            )
        ]

    async def close(self) -> None:
        """Lets requests end, and gives all shards to other nodes."""
        if self.survey is not None:
            await self.survey.stop()
        if self.host is not None:
            await self.host.stop()
        await self.standings.stop()
        await self.background.stop(seconds=_NOTICE_SECONDS_MAX)


class Endpoints:
    """Opens the endpoints of subscriptions, with their secrets."""

    def __init__(self, subscriptions: Subscriptions, means: Means) -> None:
        self._subscriptions = subscriptions
        self.means = means
        #: Secrets of the newest version: all shards of a subscription ask for the same.
        self._secrets: dict[tuple[str, str], tuple[Subscription, tuple[Secret, ...]]] = {}

    async def open(self, subscription: Subscription) -> Endpoint:
        """The endpoint as it is defined now."""
        return open_endpoint(subscription, await self.secrets(subscription), self.means)

    async def secrets(self, subscription: Subscription) -> tuple[Secret, ...]:
        """What its requests are signed with; a rotation makes a new version."""
        if not is_address(subscription.endpoint):
            return ()
        name = subscription.project, subscription.name
        kept = self._secrets.get(name)
        if kept is None or kept[0] != subscription:
            kept = subscription, await self._subscriptions.secrets(subscription)
            self._secrets[name] = kept
        return kept[1]


class Background:
    """What is done while nobody waits for it."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Does it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self, *, seconds: float) -> None:
        """Gives up what does not end in time."""
        tasks = set(self._tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def open_dispatch(
    settings: SubscriptionConfig,
    opened: OpenStore,
    catalogue: Catalogue,
    logs: StreamLogs,
    topics: TopicService,
    means: Means,
    *,
    check: EndpointCheck,
    clock: Clock,
    identity: IdSource,
    notice_url: str = "",
    recorded: bool = True,
    records_full: FullPolicy = "drop_and_count",
) -> Dispatch:
    """Opens everything, and begins to deliver if the settings say so."""
    store, dataset = opened.store, opened.dataset if recorded else UNRECORDED
    keeps = record_retention(settings.log_bytes_max, records_full)
    keep_ms = round(settings.operation_days * _DAY_MS)
    subscriptions = Subscriptions(
        catalogue,
        store,
        logs,
        topics,
        clock=clock,
        identity=identity,
        dataset=dataset,
        keeps=keeps,
        check=check,
    )
    operations = Operations(
        subscriptions, store, clock=clock, identity=identity, dataset=dataset, keep_ms=keep_ms
    )
    states, endpoints = EndpointStates(store), Endpoints(subscriptions, means)
    node, background = identity.token(16), Background()
    standings = Standings(
        states, opened.wakeups, clock=clock, node=node if settings.deliver else ""
    )
    notices = Notices(store, means.sender, begin=background.begin, url=notice_url)
    tally, host, survey = Tally(), None, None
    if settings.deliver:
        shard_means = ShardMeans(
            store=ShardStore(store),
            commits=Commits(store),
            logs=logs,
            wakeups=opened.wakeups,
            clock=clock,
            dataset=dataset,
            keeps=keeps,
            node=node,
            store_is_full=lambda: opened.memory.is_full,
            topic=topics.get,
            endpoint=endpoints.open,
            standing=standings.of,
            states=states,
            announce=notices.announce,
            operations=operations,
            counts=tally,
        )
        host = _host(settings, opened, subscriptions, shard_means)
        survey = _survey(host, opened, subscriptions, shard_means, tally.labels)
        for part in (standings, host, survey):
            await part.start()
    return Dispatch(
        subscriptions=subscriptions,
        operations=operations,
        upkeep=SubscriptionUpkeep(subscriptions, operations, logs, clock=clock, keep_ms=keep_ms),
        standings=standings,
        states=states,
        endpoints=endpoints,
        background=background,
        identity=identity,
        host=host,
        survey=survey,
    )


def _host(
    settings: SubscriptionConfig,
    opened: OpenStore,
    subscriptions: Subscriptions,
    means: ShardMeans,
) -> Host:
    async def active() -> list[Subscription]:
        return [
            each
            async for page in subscriptions.everything()
            for each in page
            if each.state == "active"
        ]

    def shard(subscription: Subscription, place: Place, lease: Lease) -> Shard:
        return Shard(subscription, place, lease, means)

    return Host(
        opened.store,
        opened.wakeups,
        active,
        shard,
        renewer=opened.renewer,
        clock=means.clock,
        node=means.node,
        patience=Patience.of_lease(settings.lease_seconds),
        shards_max=settings.shards_max,
        grace_seconds=settings.grace_seconds,
    )


def _survey(
    host: Host,
    opened: OpenStore,
    subscriptions: Subscriptions,
    means: ShardMeans,
    labels: Labels,
) -> Survey:
    return Survey(
        lambda: host.shards,
        Looking(opened.store),
        Backlogs(opened.store, means.logs),
        subscription=subscriptions.get,
        topic=means.topic,
        labels=labels,
        clock=means.clock,
    )
