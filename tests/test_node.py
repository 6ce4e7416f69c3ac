"""Node: closing releases every part, also when one of them fails or the store is overloaded."""

from __future__ import annotations

import asyncio

import pytest

from waystation.config import Config
from waystation.errors import StoreError
from waystation.node import open_node
from waystation.store import connection
from waystation.subscriptions.dispatch import Dispatch


async def test_node_close_with_failing_part_closes_all_others(
    settings: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = Dispatch.close

    async def fail(dispatch: Dispatch) -> None:
        await close(dispatch)
        raise LookupError("bug")

    monkeypatch.setattr(Dispatch, "close", fail)
    node = await open_node(settings)

    with pytest.raises(LookupError):
        await node.close()

    with pytest.raises(StoreError):
        await node.opened.store.ping()
    assert node.engine.nodes.stopping
    assert node.gate.stopping


async def test_node_close_with_busy_store_client_raises_nothing(
    settings: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await open_node(settings)
    async with asyncio.timeout(20):
        while not node.leader.leads:
            await asyncio.sleep(0.01)
    # Every call is refused with BusyError, also the release of the maintenance lease.
    monkeypatch.setattr(connection, "CALLS_MAX", 0)

    await node.close()

    with pytest.raises(StoreError):
        await node.opened.store.ping()
