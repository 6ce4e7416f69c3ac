"""What a benchmark needs before its first round."""

from __future__ import annotations

from pathlib import Path

from waystation.access import Scope, new_key
from waystation.config import Config
from waystation.node import open_catalogue
from waystation.runtime.clock import Clock
from waystation.runtime.ids import RandomIds
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.keys import DEFAULT_PROJECT
from waystation.store.opening import read_server_facts


async def make_key(data: Path) -> str:
    """A key that may publish, in the catalogue of a data folder."""
    catalogue = open_catalogue(Config(data=str(data)))
    await catalogue.open()
    try:
        key, record = new_key(
            RandomIds(),
            project=DEFAULT_PROJECT,
            scope=Scope.WRITE,
            label="bench",
            now_ms=Clock().now_ms(),
        )
        await catalogue.add_key(record)
    finally:
        await catalogue.close()
    return key


async def store_version(server: EmbeddedServer) -> str:
    """The version of a running store, for the report."""
    store = Store(server.address)
    try:
        return (await read_server_facts(store))[0].version
    finally:
        await store.close()
