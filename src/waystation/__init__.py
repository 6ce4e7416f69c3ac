"""Waystation: durable messages and transactions on Valkey/Redis, with their history in Spark.

    from waystation import Waystation

    with Waystation("http://127.0.0.1:7070") as station:
        station.channels.publish("orders", {"id": 7})

Everything public is named here; the rest may change without notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from waystation.client import AsyncWaystation, Waystation

    __version__: str

__all__ = ["AsyncWaystation", "Waystation", "__version__"]


def __getattr__(name: str) -> Any:
    # Late, so that the command line starts without HTTP libraries and package metadata.
    if name in ("AsyncWaystation", "Waystation"):
        from waystation import client  # noqa: PLC0415

        return getattr(client, name)
    if name == "__version__":
        from importlib import metadata  # noqa: PLC0415

        return metadata.version("waystation")
    raise AttributeError(f"module 'waystation' has no attribute {name!r}")
