"""HTTP for the ordinary client, on urllib3."""

from __future__ import annotations

import time

import urllib3

from waystation.client.messages import Answer, unreachable

#: Connecting and sending may take this long; a long poll gets its own time on top.
_SECONDS_MAX = 15.0


class Transport:
    """Keeps connections open between requests. May be used by several threads."""

    def __init__(self, url: str, key: str) -> None:
        self._base = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._pool = urllib3.PoolManager(retries=False, maxsize=16, timeout=_SECONDS_MAX)

    def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        content_type: str = "",
        patience: float = 0.0,
    ) -> Answer:
        """One request, without retries. `patience` is how long the server may think."""
        told = {"Content-Type": content_type} if content_type else {}
        try:
            response = self._pool.request(
                method,
                self._base + path,
                body=body,
                headers=self._headers | told,
                timeout=_SECONDS_MAX + patience,
                redirect=False,
            )
        except urllib3.exceptions.HTTPError as error:
            raise unreachable(self._base, error) from error
        return Answer(response.status, response.data)

    def sleep(self, seconds: float) -> None:
        """Waits."""
        time.sleep(seconds)

    def close(self) -> None:
        """Closes the connections."""
        self._pool.clear()
