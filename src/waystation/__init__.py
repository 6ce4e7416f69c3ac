"""Waystation: durable messages and transactions on Valkey/Redis, with their history in Spark.

    from waystation import Waystation

    with Waystation("http://127.0.0.1:7070") as station:
        station.channels.publish("orders", {"id": 7})

`App` and the outcomes `Fail`, `Abort`, `RetryLater`, `Wait`, `Child`, `Parallel` are for steps of
transactions; a step's first argument is a `Context`, or a `BlockingContext` in a plain function.

Everything public is named here; the rest may change without notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from waystation.client import AsyncWaystation, Waystation
    from waystation.transactions.app import App
    from waystation.transactions.context import BlockingContext, Context
    from waystation.transactions.outcomes import Abort, Child, Fail, Parallel, RetryLater, Wait

    __version__: str

__all__ = [
    "Abort",
    "App",
    "AsyncWaystation",
    "BlockingContext",
    "Child",
    "Context",
    "Fail",
    "Parallel",
    "RetryLater",
    "Wait",
    "Waystation",
    "__version__",
]

#: Public name → the module that it lives in.
_HOMES = {
    "Abort": "transactions.outcomes",
    "App": "transactions.app",
    "AsyncWaystation": "client",
    "BlockingContext": "transactions.context",
    "Child": "transactions.outcomes",
    "Context": "transactions.context",
    "Fail": "transactions.outcomes",
    "Parallel": "transactions.outcomes",
    "RetryLater": "transactions.outcomes",
    "Wait": "transactions.outcomes",
    "Waystation": "client",
}


def __getattr__(name: str) -> Any:
    # Late, so that the command line starts without HTTP libraries and package metadata.
    if name in _HOMES:
        from importlib import import_module  # noqa: PLC0415

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    if name == "__version__":
        from importlib import metadata  # noqa: PLC0415

        return metadata.version("waystation")
    raise AttributeError(f"module 'waystation' has no attribute {name!r}")
