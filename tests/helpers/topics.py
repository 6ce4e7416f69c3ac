"""The topic service of a test that needs no node."""

from __future__ import annotations

from waystation.catalogue import SqliteCatalogue
from waystation.logs.streams import StreamLogs
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.subscriptions.definitions import SubscriptionDefinitions
from waystation.subscriptions.topic_readers import SubscriptionReaders
from waystation.topics.service import TopicService


def open_readers(
    catalogue: SqliteCatalogue, store: Store, logs: StreamLogs, *, clock: Clock
) -> SubscriptionReaders:
    """Return the readers of topics as a node builds them."""
    return SubscriptionReaders(SubscriptionDefinitions(catalogue, store, clock=clock), logs)


def open_topics(
    catalogue: SqliteCatalogue,
    store: Store,
    logs: StreamLogs,
    *,
    clock: Clock,
    strict: bool = False,
) -> TopicService:
    """Return a topic service as a node builds it, with the subscriptions of the catalogue."""
    readers = open_readers(catalogue, store, logs, clock=clock)
    return TopicService(catalogue, store, logs, readers, clock=clock, strict=strict)
