"""Store clients for tests, closed at the end of their block."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from waystation.store.address import Address
from waystation.store.client import Store
from waystation.testing.servers import on_cluster


def address_of(text: str) -> Address:
    """The store of the tests as another process is told of it: a path, or a port."""
    at = Address(path=text) if "/" in text else Address(host="127.0.0.1", port=int(text))
    return at.clustered() if on_cluster() else at


@asynccontextmanager
async def store_at(
    address: Address, *, call_seconds_max: float = 5.0, test_mode: bool = False
) -> AsyncIterator[Store]:
    """A connected-on-demand client."""
    store = Store(address, call_seconds_max=call_seconds_max, test_mode=test_mode)
    try:
        yield store
    finally:
        await store.close()
