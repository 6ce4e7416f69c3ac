"""HTTP for the asynchronous client, on aiohttp."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
from yarl import URL

from waystation.client.messages import Answer, unreachable

#: Connecting and sending may take this long; a long poll gets its own time on top.
_SECONDS_MAX = 15.0


class AsyncTransport:
    """Keeps connections open between requests."""

    def __init__(self, url: str, key: str) -> None:
        self._base = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._session: aiohttp.ClientSession | None = None

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        content_type: str = "",
        patience: float = 0.0,
    ) -> Answer:
        """One request, without retries. `patience` is how long the server may think."""
        if self._session is None:
            # No bound: who waits holds a connection, and a hundred that wait, which is aiohttp's
            # bound, would keep the one request out that they wait for.
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(connector=connector, headers=self._headers)
        options: dict[str, Any] = {
            "data": body,
            "headers": {"Content-Type": content_type} if content_type else {},
            "timeout": aiohttp.ClientTimeout(total=_SECONDS_MAX + patience),
            "allow_redirects": False,
        }
        try:
            url = URL(self._base + path, encoded=True)
            async with self._session.request(method, url, **options) as response:
                return Answer(response.status, await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise unreachable(self._base, error) from error

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        await asyncio.sleep(seconds)

    async def aclose(self) -> None:
        """Closes the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None
