"""The desk of subscriptions: what people see of them from outside, in every process.

Lists, standings and reasons; it only looks, but for `enable`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from waystation.delivery.states import EndpointStates
from waystation.logs.protocol import Logs
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.subscriptions.backlog import Backlogs
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.dispatch import Dispatch
from waystation.subscriptions.endpoints.opening import open_endpoint
from waystation.subscriptions.hindrances import Hindrances
from waystation.subscriptions.listing import Listing
from waystation.subscriptions.looking import Looking
from waystation.subscriptions.names import Place
from waystation.subscriptions.overview import Overview
from waystation.subscriptions.owned import Owned
from waystation.subscriptions.selecting import Selecting
from waystation.subscriptions.why import Why
from waystation.topics.queries import TopicQueries


@dataclass(frozen=True)
class Desk:
    """The parts that others use."""

    listing: Listing
    overview: Overview
    why: Why
    states: EndpointStates
    target: Callable[[Subscription], str]

    async def enable(self, subscription: Subscription) -> bool:
        """Enable the endpoint of a subscription and close its breaker on all nodes.

        Return False if it was neither disabled nor held.
        """
        return await self.states.enable(self.target(subscription))


def open_desk(
    dispatch: Dispatch, store: Store, logs: Logs, browser: TopicQueries, *, clock: Clock
) -> Desk:
    """The desk of a process."""
    subscriptions, host = dispatch.subscriptions, dispatch.host

    def target(subscription: Subscription) -> str:
        return open_endpoint(subscription, (), dispatch.endpoints.means).target

    def shards() -> Mapping[Place, Owned]:
        return host.shards if host is not None else {}

    looking = Looking(store)
    selecting = Selecting(subscriptions, looking)
    hindrances = Hindrances(
        subscriptions,
        store,
        logs,
        target=target,
        standing=dispatch.standings.known,
        shards=shards,
        clock=clock,
    )
    overview = Overview(subscriptions, looking, Backlogs(store, logs), hindrances)
    why = Why(subscriptions, looking, selecting, hindrances, overview, browser=browser, logs=logs)
    listing = Listing(subscriptions, looking, selecting)
    return Desk(listing, overview, why, EndpointStates(store), target)
