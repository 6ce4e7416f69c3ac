"""How the tasks of Spark are told where the store is, without its password in a plan."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waystation.history.options import StorePlace
from waystation.settings import Settings, make_private
from waystation.store.address import parse_address
from waystation.store.embedded import EmbeddedServer


@contextmanager
def store_access(settings: Settings) -> Iterator[StorePlace]:
    """The store of the settings for the length of the block; an embedded one is kept alive."""
    url = settings.store.url
    if not url:
        server = EmbeddedServer(settings.data_dir / "store", durability=settings.store.durability)
        with server:
            yield StorePlace(f"unix://{server.address.path}")
    elif not parse_address(url).password:
        yield StorePlace(url)
    elif named := os.environ.get("WAYSTATION_STORE_URL_FILE", ""):
        # On a cluster the operator has put this file on every machine.
        yield StorePlace("", str(Path(named).absolute()))
    else:
        yield StorePlace("", str(_written(settings.data_dir / "history", url)))


def _written(folder: Path, url: str) -> Path:
    """A file with the URL, for this machine's tasks, that nobody else may read."""
    make_private(folder)
    file = folder / "store-url"
    file.touch(mode=0o600)
    file.write_text(url, encoding="utf-8")
    return file
