"""Options that several commands share, each written once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from waystation.config_sources import LoadedConfig, load_config
from waystation.errors import SettingsError

#: Taken when it lies in the current directory and no other is named.
DEFAULT_FILE = "waystation.toml"

ChannelArgument = Annotated[str, typer.Argument(help="Name of the channel.")]
TopicArgument = Annotated[str, typer.Argument(help="Name of the topic.")]
SubscriptionArgument = Annotated[str, typer.Argument(help="Name of the subscription.")]
PoolArgument = Annotated[str, typer.Argument(help="Name of the pool.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
ConfigOption = Annotated[
    str, typer.Option("--config", help="Settings file; default ./waystation.toml if it exists.")
]
DataOption = Annotated[
    str | None, typer.Option("--data", help="Data directory; default .waystation.", metavar="DIR")
]
StoreOption = Annotated[
    str | None, typer.Option("--store", help="Store URL; default: embedded.", metavar="URL")
]
UrlOption = Annotated[
    str, typer.Option("--url", help="Station; default $WAYSTATION_URL or http://127.0.0.1:7070.")
]
KeyOption = Annotated[str, typer.Option("--key", help="API key; better: $WAYSTATION_KEY.")]


def read_settings(
    config: str = "", *, defaults: Mapping[str, Any] | None = None, **flags: Any
) -> LoadedConfig:
    """The effective settings; a flag `http_port` is the setting `http.port`."""
    named = config or os.environ.get("WAYSTATION_CONFIG", "")
    file = Path(named or DEFAULT_FILE)
    if not file.exists():
        if named:
            raise SettingsError(f"There is no settings file {named}.")
        file = None  # type: ignore[assignment]
    by_name = {
        name.replace("_", ".", 1) if name.split("_")[0] in _SECTIONS else name: value
        for name, value in flags.items()
    }
    return load_config(defaults=defaults, file=file, environment=os.environ, flags=by_name)


_SECTIONS = (
    *("auth", "channels", "deliverer", "delivery", "history", "http", "log", "relay", "store"),
    *("topics", "transactions"),
)
