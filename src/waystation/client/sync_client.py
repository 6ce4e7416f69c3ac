"""The ordinary client: one station, and the verbs of its parts."""

# Generated from async_client.py by scripts/generate.py; change that one.

from __future__ import annotations

from types import TracebackType
from typing import Self

from waystation.client.environment import key_from_environment, station_url
from waystation.client.sync_archive import Archive
from waystation.client.sync_channels import Channels
from waystation.client.sync_deliveries import Deliveries
from waystation.client.sync_history import History
from waystation.client.sync_pipelines import Pipelines
from waystation.client.sync_pools import Pools
from waystation.client.sync_subscriptions import Subscriptions
from waystation.client.sync_topics import Topics
from waystation.client.sync_transactions import Transactions
from waystation.client.sync_transport import Transport
from waystation.client.sync_webhooks import Webhooks


class Waystation:
    """A client of the station at `url`.

    The key comes from the argument, else from WAYSTATION_KEY or WAYSTATION_KEY_FILE; a
    `waystation dev` needs none.
    """

    def __init__(self, url: str = "", *, key: str = "") -> None:
        self.url = station_url(url)
        self._transport = Transport(self.url, key or key_from_environment())
        self.archive = Archive(self._transport)
        self.channels = Channels(self._transport)
        self.deliveries = Deliveries(self._transport)
        self.history = History(self._transport)
        self.pipelines = Pipelines(self._transport)
        self.pools = Pools(self._transport)
        self.subscriptions = Subscriptions(self._transport)
        self.topics = Topics(self._transport)
        self.transactions = Transactions(self._transport)
        self.webhooks = Webhooks(self._transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes producers, which send what they have, and the connections."""
        try:
            self.topics.close()
        finally:
            self._transport.close()
