"""`waystation pool map | workers | watch | why`: who has which key, with what load, and why."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from waystation.cli.options import JsonOption, KeyOption, PoolArgument, UrlOption
from waystation.cli.output import console, emit_json, emit_table, make_table, one_line, printable
from waystation.cli.patience import patiently
from waystation.cli.station import open_station
from waystation.errors import ExitCode

if TYPE_CHECKING:
    from rich.live import Live

    from waystation.client import PoolStanding

RecipientArgument = Annotated[str, typer.Argument(help="Recipient key.", metavar="KEY")]
_COLUMNS = ("worker", "state", "kind", "keys", "pending", "taken", "last access")
_NUMBERS = ("keys", "pending", "taken", "last access")


def keys(
    name: PoolArgument,
    worker: Annotated[
        str, typer.Option("--worker", help="Only its keys; - for those without a worker.")
    ] = "",
    limit: Annotated[int, typer.Option("--max", help="Most keys.", min=1)] = 100,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show which worker has which recipient key, and the load of each worker."""
    with open_station(url, key, scope="read") as station:
        standing = station.pools.workers(name)
        # A key that moves while the pages are read may be on two of them.
        some = islice(station.pools.map(name, worker=worker), 2 * limit)
        found = sorted({each.key: each for each in some}.values(), key=lambda each: each.key)
        found = found[:limit]
    if as_json:
        emit_json({"standing": standing, "keys": found})
        return
    show_workers(standing)
    console.print()
    emit_table(
        ("key", "worker", "state", "pending", "epoch", "has it", "because"),
        [
            (
                printable(each.key),
                each.owner,
                each.state,
                each.pending,
                each.epoch,
                _ago(standing.now_ms - each.since_ms),
                each.reason,
            )
            for each in found
        ],
        empty="No keys: each comes with its first message.",
        numbers=("pending", "epoch", "has it"),
    )


def workers(
    name: PoolArgument, url: UrlOption = "", key: KeyOption = "", as_json: JsonOption = False
) -> None:
    """Show the workers of a pool: state, load, and when each was heard of."""
    with open_station(url, key, scope="read") as station:
        standing = station.pools.workers(name)
    if as_json:
        emit_json(standing)
    else:
        show_workers(standing)


def watch(
    name: PoolArgument,
    every: Annotated[float, typer.Option("--every", help="Seconds between looks.", min=0.1)] = 1.0,
    count: Annotated[
        int, typer.Option("--count", help="End after so many looks; 0 = never.", min=0)
    ] = 0,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show the load of each worker as it changes, until Ctrl-C."""
    from rich.live import Live  # noqa: PLC0415 (only this command needs it)

    in_place = console.is_terminal and not as_json
    live = Live(console=console, auto_refresh=False) if in_place else None
    with open_station(url, key, scope="read") as station:
        looks = 0
        try:
            if live is not None:
                live.start()
            while True:
                _show(patiently(lambda: station.pools.workers(name)), live, as_json=as_json)
                looks += 1
                if looks == count:
                    return
                time.sleep(every)
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        finally:
            if live is not None:
                live.stop()


def why(
    name: PoolArgument,
    recipient: RecipientArgument,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Tell who has a key, and why what waits for it waits; exit code 3 if it is not known."""
    with open_station(url, key, scope="read") as station:
        reason = station.pools.why(name, recipient)
    if as_json:
        emit_json(reason)
    else:
        console.print(Text(f"{reason.code}  {one_line(reason.text)}"), soft_wrap=True)
    if reason.code == "unknown":
        raise typer.Exit(ExitCode.NOT_FOUND)


def show_workers(standing: PoolStanding) -> None:
    """What a pool holds, and a table of its workers."""
    console.print(Text(_summary(standing)), soft_wrap=True)
    empty = "No workers. What is sent waits until one registers."
    emit_table(_COLUMNS, _rows(standing), empty=empty, numbers=_NUMBERS)


def _show(standing: PoolStanding, live: Live | None, *, as_json: bool) -> None:
    if as_json:
        emit_json(standing)
    elif live is not None:
        table = make_table(_COLUMNS, _rows(standing), numbers=_NUMBERS)
        table.caption, table.caption_justify = _summary(standing), "left"
        live.update(table, refresh=True)
    else:
        show_workers(standing)


def _summary(standing: PoolStanding) -> str:
    told = f"{standing.keys:,} keys, {standing.pending:,} pending"
    if standing.waiting:
        told += f", {standing.waiting:,} without a worker"
    if standing.oldest_wait_ms:
        told += f", the oldest for {_ago(standing.oldest_wait_ms)}"
    return f"{told}; {standing.dead:,} dead letters" if standing.dead else told


def _rows(standing: PoolStanding) -> list[tuple[object, ...]]:
    return [
        (
            each.uid,
            each.state,
            each.kind,
            each.keys,
            each.pending,
            each.taken,
            "never" if each.last_access_ms is None else _ago(standing.now_ms - each.last_access_ms),
        )
        for each in standing.workers
    ]


def _ago(ms: int) -> str:
    seconds = max(0, ms) / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
