"""Location of the store for jobs and their Spark tasks, without its password in a Spark plan."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waystation.config import Config
from waystation.errors import NoStoreError, OtherDataSetError
from waystation.history.log_reader import LogReader
from waystation.history.sources.options import Location
from waystation.history.store_file import store_url_file
from waystation.runtime.data_files import make_private, replace_private
from waystation.store.address import parse_address
from waystation.store.embedded.server import EmbeddedServer


def require_store(settings: Config) -> None:
    """Raise NoStoreError if the settings name an embedded store that does not exist.

    A job must not start a server in an empty folder, because that would create a store.
    """
    if not settings.store.url and not (settings.data_dir / "store").is_dir():
        raise NoStoreError(
            f"The data folder {settings.data_dir} has no store.",
            hint="Name the server with --url or WAYSTATION_URL, its data folder with --data, or a"
            " store with --store.",
        )


def require_dataset(access: Location, dataset: str) -> None:
    """Raise OtherDataSetError unless a store has the data set of the server; empty: any.

    Raise NoStoreError if no server has used the store yet.
    """
    with LogReader(access.resolve()) as logs:
        found = logs.dataset()
    if not found:
        raise NoStoreError(
            "The store is empty: no server has used it yet.",
            hint="Name the server with --url or WAYSTATION_URL, its data folder with --data, or"
            " its store with --store.",
        )
    if dataset and found != dataset:
        raise OtherDataSetError(
            f"The store has the data set {found}, and the server that you named has {dataset}.",
            hint="Name the store of that server with --store or --data, or leave out the server.",
        )


@contextmanager
def store_access(settings: Config) -> Iterator[Location]:
    """Yield the location of the store, and keep an embedded store running during the block.

    If this starts the embedded store, it has the durability `memory`, because jobs write only
    leases and copies of offsets. A store that is already running keeps the durability of its
    server.
    """
    url = settings.store.url
    if not url:
        server = EmbeddedServer(
            settings.data_dir / "store", durability="memory", cluster=settings.store.cluster
        )
        with server:
            yield Location(f"unix://{server.address.path}")
    elif not parse_address(url).password:
        yield Location(url)
    elif file := store_url_file(url, os.environ):
        yield Location("", file)
    else:
        yield Location("", str(_write_url(settings.data_dir / "history", url)))


def _write_url(folder: Path, url: str) -> Path:
    """Write the URL to a file that only this user can read, for the tasks on this machine.

    Each URL has a file of its own, because commands with another store share the data directory
    with the server, whose tasks read the file at any time.
    """
    make_private(folder)
    digest = hashlib.sha256(url.encode()).hexdigest()[:24]
    file = folder / f"store-url-{digest}"
    replace_private(file, url)
    return file
