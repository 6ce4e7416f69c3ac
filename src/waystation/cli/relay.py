"""`waystation relay`: the door of agents, until it is told to stop."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from waystation.cli.options import ConfigOption, DataOption, StoreOption, read_settings
from waystation.cli.output import emit_json
from waystation.cli.plugin_environment import plugin_defaults
from waystation.cli.running import run_until_stopped

if TYPE_CHECKING:
    from waystation.relay.opening import OpenRelay


def relay(
    pool: Annotated[str | None, typer.Option("--pool", help="Pool that envelopes wait in.")] = None,
    project: Annotated[str | None, typer.Option("--project", help="Project of the pool.")] = None,
    mirror: Annotated[
        bool | None,
        typer.Option("--mirror/--no-mirror", help="Whether ACA-Py agents serve a pool made here."),
    ] = None,
    data: DataOption = None,
    store: StoreOption = None,
    config: ConfigOption = "",
) -> None:
    """Take DIDComm envelopes over HTTP and WebSocket, and hand them to the pool of their agents."""
    from waystation.relay.opening import open_relay  # noqa: PLC0415

    settings = read_settings(
        config,
        defaults=plugin_defaults(os.environ, "relay"),
        data=data,
        store_url=store,
        relay_pool=pool,
        relay_project=project,
        relay_mirror=mirror,
    ).config

    def announce(running: OpenRelay) -> None:
        emit_json(
            {
                "relay": [{"door": kind, "address": address} for kind, address in running.doors],
                "pool": settings.relay.pool,
                "store": str(running.opened.store.address),
            }
        )

    run_until_stopped(open_relay(settings), announce, settings.log)
