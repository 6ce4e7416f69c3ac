"""Store, lake and Spark session of the commands of `waystation history`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from waystation.cli.options import read_settings
from waystation.cli.output import problems
from waystation.cli.station import open_station
from waystation.config import Config
from waystation.errors import NoStoreError
from waystation.history.packages import require_packages
from waystation.runtime.data_files import tighten

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from waystation.client.history import HistoryPlace
    from waystation.history.lake.table import Lake
    from waystation.history.sources.options import Location


class Target(msgspec.Struct, frozen=True):
    """Settings of a command, and the server that it names."""

    settings: Config
    #: Data set, data folder and lake of the server; None if the command names no server.
    place: HistoryPlace | None = None


def find_target(
    config: str,
    *,
    url: str,
    key: str,
    store: str | None = None,
    data: str | None = None,
    lake: str | None = None,
    **flags: Any,
) -> Target:
    """Return the settings of a command, with data folder and lake of the server if one is named.

    `--url` or WAYSTATION_URL names a server. Flags take precedence over the reply of the server.
    `opened_store` rejects a store with another data set than that of the server. Raise
    HistoryMissingError if a package of history is not installed.
    """
    require_packages()
    place = None
    if named := url or os.environ.get("WAYSTATION_URL", ""):
        with open_station(named, key, scope="admin") as station:
            place = station.history.place()
        if data is None:
            lake = lake or place.lake
            # On another machine, only a lake with a URL can be read.
            data = place.data if Path(place.data).is_dir() else None
    loaded = read_settings(config, store_url=store, data=data, history_lake=lake, **flags)
    return Target(loaded.config, place)


def _require_reachable_store(target: Target) -> None:
    """Raise NoStoreError if this machine cannot find the store of the server."""
    place = target.place
    if place is None or target.settings.store.url:
        return
    if not place.embedded:
        raise NoStoreError(
            "The server uses an external store and does not report its URL.",
            hint="Name it with --store or WAYSTATION_STORE_URL.",
        )
    if not target.settings.data_dir.is_dir():
        raise NoStoreError(
            f"The data folder of the server, {place.data}, is not on this machine.",
            hint="Run the command on the machine of the server, or name its store with --store.",
        )


@contextmanager
def opened_store(target: Target) -> Iterator[Location]:
    """Yield the location of the store of a target. Never create a store.

    Raise NoStoreError if the store is missing or empty, OtherDataSetError if its data set is not
    that of the server.
    """
    from waystation.history.store_access import (  # noqa: PLC0415
        require_dataset,
        require_store,
        store_access,
    )

    _require_reachable_store(target)
    require_store(target.settings)
    with store_access(target.settings) as access:
        require_dataset(access, target.place.dataset if target.place else "")
        yield access


def check_lake(settings: Config) -> None:
    """Raise NoLakeError before Spark starts, because that takes seconds."""
    from waystation.history.lake.schema import BASE  # noqa: PLC0415
    from waystation.history.lake.table import Lake  # noqa: PLC0415

    Lake(settings.lake_place).require(BASE)


@contextmanager
def session(
    settings: Config, *, ui: bool | None = None, quiet: bool
) -> Iterator[tuple[SparkSession, Lake]]:
    """Yield a session and the lake of the settings, and translate errors of Spark.

    `ui` None starts the Spark UI if the settings ask for it, and also for a local session if the
    command runs on a terminal and is not quiet.
    """
    # Import here, because Spark takes seconds to import and other commands do not need it.
    from waystation.history.lake.table import Lake  # noqa: PLC0415
    from waystation.history.session import (  # noqa: PLC0415
        running_session,
        session_plan,
        ui_address,
    )

    plan = session_plan(settings)
    if ui is None and not quiet and problems.is_terminal and plan.master.startswith("local"):
        plan = msgspec.structs.replace(plan, ui=True)
    with running_session(plan) as spark:
        if (address := ui_address(spark)) and not quiet:
            problems.print(f"Spark UI: {address}", style="dim", soft_wrap=True)
        if not settings.history.lake:
            # A lake elsewhere may be shared; its operator decides who reads it.
            tighten([settings.data_dir / "lake"])
        yield spark, Lake(settings.lake_place)
