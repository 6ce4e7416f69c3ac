"""Store clients for tests, closed at the end of their block."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from waystation.store import Store
from waystation.store.address import Address


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
