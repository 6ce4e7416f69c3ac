"""What the shards of a process work with; the node gives it."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from waystation.delivery.notices import Notice
from waystation.delivery.standing import Standing
from waystation.delivery.states import EndpointStates
from waystation.logs.protocol import Logs, Retention
from waystation.runtime.clock import Clock
from waystation.store.pubsub import PubSub
from waystation.subscriptions.commits import Commits
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.endpoints.protocol import Endpoint
from waystation.subscriptions.names import Place
from waystation.subscriptions.shard_store import ShardStore
from waystation.subscriptions.slots import Slots
from waystation.subscriptions.states import Verdict
from waystation.subscriptions.terms import Terms
from waystation.topics.model import TopicDefinition


class Counts(Protocol):
    """Who counts what shards do."""

    def attempted(self, place: Place, verdict: Verdict) -> None:
        """A request has ended; `release`: it was as if it had not been made."""
        ...

    def doubled(self, place: Place) -> None:
        """What was delivered or pushed had been settled before."""
        ...


class RedriveLimit(msgspec.Struct, frozen=True):
    """The rate that holds for dead letters that are redriven."""

    operation: str
    #: Messages a second, over all shards; None: not known yet, and nothing is redriven so far.
    rate: float | None


class Steps(Protocol):
    """Who works off the operations of a shard (`Operations`)."""

    def redrive_limit(self, place: Place, epoch: int) -> RedriveLimit | None:
        """Return the rate of redriven messages of a shard; None if there is no such rate."""
        ...

    async def step(self, place: Place, terms: Terms, credit: int) -> float:
        """Does some of what is asked for; seconds until there is more to do."""
        ...


class _NoCounts:
    """Counts nothing."""

    def attempted(self, place: Place, verdict: Verdict) -> None:
        """Is not counted."""

    def doubled(self, place: Place) -> None:
        """Is not counted."""


_UNCOUNTED = _NoCounts()
_UNBOUNDED = Retention()


def _tell_nobody(notice: Notice) -> None:
    """The notice is in the store, and that is all."""


@dataclass(frozen=True, kw_only=True)
class ShardMeans:
    """What all shards of a process share."""

    store: ShardStore
    commits: Commits
    logs: Logs
    wakeups: PubSub
    clock: Clock
    rng: random.Random = field(default_factory=random.Random)
    #: Which data of the store it is, for records; what record logs keep; and who we are.
    dataset: str
    keeps: Retention = _UNBOUNDED
    node: str
    #: Whether the store is above its memory limit.
    store_is_full: Callable[[], bool] = lambda: False
    #: The topic of a project by its name; TopicNotFoundError if it is gone.
    topic: Callable[[str, str], Awaitable[TopicDefinition]]
    #: The endpoint of a subscription as it is defined now, with its secrets.
    endpoint: Callable[[Subscription], Awaitable[Endpoint]]
    #: The one standing that a target has in this process.
    standing: Callable[[str], Standing]
    #: What all processes know of endpoints; and who tells the operator of one that was disabled.
    states: EndpointStates
    announce: Callable[[Notice], None] = _tell_nobody
    slots: Slots = field(default_factory=Slots)
    operations: Steps | None = None
    counts: Counts = _UNCOUNTED
