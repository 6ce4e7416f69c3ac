"""The asynchronous client: one station, and the verbs of its parts."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from waystation.client.async_archive import AsyncArchive
from waystation.client.async_channels import AsyncChannels
from waystation.client.async_deliveries import AsyncDeliveries
from waystation.client.async_history import AsyncHistory
from waystation.client.async_pipelines import AsyncPipelines
from waystation.client.async_pools import AsyncPools
from waystation.client.async_subscriptions import AsyncSubscriptions
from waystation.client.async_topics import AsyncTopics
from waystation.client.async_transactions import AsyncTransactions
from waystation.client.async_transport import AsyncTransport
from waystation.client.async_webhooks import AsyncWebhooks
from waystation.client.environment import key_from_environment, station_url


class AsyncWaystation:
    """A client of the station at `url`.

    The key comes from the argument, else from WAYSTATION_KEY or WAYSTATION_KEY_FILE; a
    `waystation dev` needs none.
    """

    def __init__(self, url: str = "", *, key: str = "") -> None:
        self.url = station_url(url)
        self._transport = AsyncTransport(self.url, key or key_from_environment())
        self.archive = AsyncArchive(self._transport)
        self.channels = AsyncChannels(self._transport)
        self.deliveries = AsyncDeliveries(self._transport)
        self.history = AsyncHistory(self._transport)
        self.pipelines = AsyncPipelines(self._transport)
        self.pools = AsyncPools(self._transport)
        self.subscriptions = AsyncSubscriptions(self._transport)
        self.topics = AsyncTopics(self._transport)
        self.transactions = AsyncTransactions(self._transport)
        self.webhooks = AsyncWebhooks(self._transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes producers, which send what they have, and the connections."""
        try:
            await self.topics.aclose()
        finally:
            await self._transport.aclose()
