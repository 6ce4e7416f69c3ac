"""`waystation deliverer`: sends what agents have put into their list; and its dead letters."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.text import Text

from waystation.cli.options import (
    ConfigOption,
    DataOption,
    JsonOption,
    StoreOption,
    read_settings,
)
from waystation.cli.output import console, emit_json, emit_table, printable
from waystation.cli.plugin_environment import plugin_defaults
from waystation.cli.running import run_until_stopped
from waystation.config import Config
from waystation.runtime.clock import Clock

if TYPE_CHECKING:
    from waystation.acapy.retry_set import DeadLetter, RetrySet
    from waystation.relay.delivering import OpenDeliverer

app = typer.Typer(help="Send what agents have put into their outbound list; and its dead letters.")

_T = TypeVar("_T")
#: Dead letters of one call.
_BATCH = 100
EventsOption = Annotated[
    str, typer.Option("--events", help="Those of a list of events, by its name.", metavar="LIST")
]
IdOption = Annotated[list[str] | None, typer.Option("--id", help="Only this one; repeatable.")]


@app.callback(invoke_without_command=True)
def deliver(
    context: typer.Context,
    data: DataOption = None,
    store: StoreOption = None,
    config: ConfigOption = "",
) -> None:
    """Send what agents have put into their outbound list, until told to stop."""
    if context.invoked_subcommand is not None:
        return
    from waystation.relay.delivering import open_deliverer  # noqa: PLC0415

    settings = _settings(data, store, config)

    def announce(running: OpenDeliverer) -> None:
        status = f"{settings.deliverer.status_host}:{running.status_port}"
        emit_json(
            {
                "deliverer": settings.deliverer.outbound,
                "store": str(running.opened.store.address),
                "status": status if running.status_port else "none",
                "events": [each.list for each in settings.deliverer.events],
            }
        )

    run_until_stopped(open_deliverer(settings), announce, settings.log)


@app.command()
def dead(
    events: EventsOption = "",
    data: DataOption = None,
    store: StoreOption = None,
    config: ConfigOption = "",
    as_json: JsonOption = False,
) -> None:
    """List messages that were given up, the oldest first, with the cause."""

    async def look(retries: RetrySet) -> list[tuple[str, str, int, bool, str]]:
        return [
            (_time(each.at_ms), each.id, each.attempts, each.readable, each.cause)
            for each in await _dead_letters(retries)
        ]

    columns = ("given up at", "id", "attempts", "readable", "cause")
    rows = _with_retries(_settings(data, store, config), events, look)
    if as_json:
        names = ("at", "id", "attempts", "readable", "cause")
        emit_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    shown = [(*row[:4], printable(row[4])) for row in rows]
    emit_table(columns, shown, empty="No dead letters.", numbers=("attempts",))


@app.command()
def redrive(
    ids: IdOption = None,
    events: EventsOption = "",
    data: DataOption = None,
    store: StoreOption = None,
    config: ConfigOption = "",
    as_json: JsonOption = False,
) -> None:
    """Try dead letters again, all or some; what cannot be read stays."""
    chosen = _settings(data, store, config)
    count = _with_retries(chosen, events, lambda each: _all_of(each, each.redrive, ids))
    _tell("redriven", count, as_json=as_json)


@app.command()
def purge(
    ids: IdOption = None,
    events: EventsOption = "",
    data: DataOption = None,
    store: StoreOption = None,
    config: ConfigOption = "",
    as_json: JsonOption = False,
) -> None:
    """Forget dead letters, all or some."""
    chosen = _settings(data, store, config)
    count = _with_retries(chosen, events, lambda each: _all_of(each, each.purge, ids))
    _tell("forgotten", count, as_json=as_json)


async def _dead_letters(retries: RetrySet) -> list[DeadLetter]:
    """Return all dead letters, the oldest first."""
    found: list[DeadLetter] = []
    while page := await retries.dead(after=found[-1] if found else None):
        found += page
    return found


async def _all_of(
    retries: RetrySet, verb: Callable[[list[str]], Awaitable[int]], ids: list[str] | None
) -> int:
    """Those that are named, or all that are there now; so many at a time as one call takes."""
    if not ids:
        # Looked up first: what is tried again may be a dead letter again while we are at it.
        ids = [each.id for each in await _dead_letters(retries)]
    return sum([await verb(ids[i : i + _BATCH]) for i in range(0, len(ids), _BATCH)])


def _settings(data: str | None, store: str | None, config: str) -> Config:
    defaults = plugin_defaults(os.environ, "deliverer")
    return read_settings(config, defaults=defaults, data=data, store_url=store).config


def _with_retries(settings: Config, events: str, work: Callable[[RetrySet], Awaitable[_T]]) -> _T:
    async def run() -> _T:
        from waystation.relay.delivering import retry_set  # noqa: PLC0415
        from waystation.store.opening import open_store  # noqa: PLC0415

        opened = await open_store(settings, clock=Clock())
        try:
            return await work(retry_set(opened.store, settings.deliverer, events=events))
        finally:
            await opened.close()

    return asyncio.run(run())


def _tell(verb: str, count: int, *, as_json: bool) -> None:
    if as_json:
        emit_json({"count": count})
    else:
        console.print(Text(f"{verb} {count:,}"))


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
