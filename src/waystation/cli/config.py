"""`waystation config`: what is set, where it came from, and what that means for a channel."""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec
import typer

from waystation.cli.options import ConfigOption, JsonOption, read_settings
from waystation.cli.output import emit_json, emit_table
from waystation.errors import InvalidChannelError
from waystation.runtime.ids import require_name

app = typer.Typer(no_args_is_help=True, help="Look at the settings.")


@app.command()
def show(config: ConfigOption = "", as_json: JsonOption = False) -> None:
    """Print the effective settings with the origin of each; secrets are hidden."""
    rows = list(read_settings(config).rows())
    if as_json:
        emit_json({name: {"value": value, "origin": origin} for name, value, origin in rows})
        return
    shown = [(name, _text(value), origin) for name, value, origin in rows]
    emit_table(("setting", "value", "from"), shown, empty="")


@app.command()
def channel(
    name: Annotated[str, typer.Argument(help="Name of a channel.")],
    config: ConfigOption = "",
    as_json: JsonOption = False,
) -> None:
    """Print what the channel rules say about one channel; secrets are hidden."""
    from waystation.channels.rules import ChannelRules  # noqa: PLC0415 (only this command needs it)

    settings = read_settings(config).config.channels
    terms = ChannelRules(settings.rules, expire_seconds=settings.expire_seconds).terms_of(
        require_name(name, field="name")
    )
    if terms is None:
        raise InvalidChannelError(f"No channel rule allows the name '{name}'.")
    told = {
        "expire_seconds": terms.expire_seconds,
        "tokens": [each.redacted() for each in terms.tokens],
        "webhooks": [each.redacted() for each in terms.webhooks],
        "backlog_max": terms.backlog_max,
        "backlog_policy": terms.backlog_policy,
    }
    if as_json:
        emit_json({"channel": name, **told})
    else:
        emit_table(
            ("term", "value"), [(term, _text(each)) for term, each in told.items()], empty=""
        )


def _text(value: Any) -> str:
    """A value in a table; of what has parts, one part a line."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "\n".join(msgspec.json.encode(each).decode() for each in value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
