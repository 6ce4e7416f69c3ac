"""`waystation subscription shards | watch | groups | group | dead`: what waits, where and why."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from waystation.cli.options import JsonOption, KeyOption, SubscriptionArgument, UrlOption
from waystation.cli.output import (
    console,
    emit_json,
    emit_table,
    make_table,
    one_line,
    printable,
    quoted,
)
from waystation.cli.patience import patiently
from waystation.cli.positions import MOMENT, parse_moment
from waystation.cli.station import open_station
from waystation.cli.topic_messages import time_of
from waystation.errors import ExitCode, InvalidInputError
from waystation.runtime.clock import Clock

if TYPE_CHECKING:
    from rich.table import Table

    from waystation.client import GroupStanding, SubscriptionStanding

GroupArgument = Annotated[str, typer.Argument(help="The group.")]
LimitOption = Annotated[int, typer.Option("--max", help="Most of them.", min=1)]
_STATES = ("retrying", "parked", "redriving")
_NUMBERS = ("shard", "lag", "lag/s", "retry", "dead", "parked", "retrying", "under way", "bytes")


def shards(
    name: SubscriptionArgument,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show how each shard stands: who delivers it, its lag, what is retried, what is dead."""
    with open_station(url, key, scope="read") as station:
        standing = station.subscriptions.shards(name)
    if as_json:
        emit_json(standing)
    else:
        show_standing(standing)


def watch(
    name: SubscriptionArgument,
    every: Annotated[float, typer.Option("--every", help="Seconds between looks.", min=0.1)] = 1.0,
    count: Annotated[
        int, typer.Option("--count", help="End after so many looks; 0 = never.", min=0)
    ] = 0,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show the lag of each shard as it changes, until Ctrl-C."""
    with open_station(url, key, scope="read") as station:
        # The first look tells at once if there is no such subscription.
        looks = 0
        before: SubscriptionStanding | None = None
        try:
            with _Screen(as_json=as_json) as screen:
                while True:
                    now = patiently(lambda: station.subscriptions.shards(name))
                    screen.show(now, before, every)
                    before, looks = now, looks + 1
                    if looks == count:
                        return
                    time.sleep(every)
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.INTERRUPTED) from None


class _Screen:
    """Where looks are shown: in place on a terminal, one after the other elsewhere."""

    def __init__(self, *, as_json: bool) -> None:
        from rich.live import Live  # noqa: PLC0415 (only this command needs it)

        self._as_json = as_json
        in_place = console.is_terminal and not as_json
        self._live = Live(console=console, auto_refresh=False) if in_place else None

    def __enter__(self) -> _Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(
        self, now: SubscriptionStanding, before: SubscriptionStanding | None, seconds: float
    ) -> None:
        """Shows a look, with what has changed since the one before."""
        if self._as_json:
            emit_json(now)
        elif self._live is not None:
            self._live.update(_table(now, before, seconds), refresh=True)
        else:
            _print_rows(now, before, seconds)


def groups(
    name: SubscriptionArgument,
    state: Annotated[
        str, typer.Option("--state", help="Only those that are retrying, parked or redriving.")
    ] = "",
    limit: LimitOption = 100,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """List groups that are not clean."""
    if state and state not in _STATES:
        raise InvalidInputError(f"{state!r} is no state.", hint=f"Give {', '.join(_STATES)}.")
    chosen: Any = state or None
    with open_station(url, key, scope="read") as station:
        found = list(islice(station.subscriptions.groups(name, state=chosen), limit))
    if as_json:
        emit_json({"groups": found})
        return
    columns = ("group", "state", "shard", "tries", "retry", "dead", "operation")
    rows = [
        (printable(each.group), *(getattr(each, column) for column in columns[1:]))
        for each in found
    ]
    empty = f"No group is {state}." if state else "All groups are clean."
    emit_table(columns, rows, empty=empty, numbers=columns[2:6])


def group(
    name: SubscriptionArgument,
    group_name: GroupArgument,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show a group: its state, what waits in it, and the message that all others wait for."""
    with open_station(url, key, scope="read") as station:
        found = station.subscriptions.group(name, group_name)
    if as_json:
        emit_json(found)
        return
    told = f"{printable(found.group)} is {found.state}, in shard {found.shard}"
    if found.retry or found.dead:
        told += f"; {found.retry:,} in retry, {found.dead:,} among dead letters"
    console.print(Text(told), soft_wrap=True)
    if found.head is not None:
        _show_head(found)
    if found.state == "parked":
        command = f"waystation subscription redrive {name} --group {quoted(found.group)}"
        advice = f"  go on with: {command}   (or skip, or purge)"
        console.print(Text(advice, style="dim"), soft_wrap=True)


def _show_head(found: GroupStanding) -> None:
    head = found.head
    assert head is not None
    told = f"  head: {head.id}, tries {found.tries}"
    if found.under_way:
        told += ", under way"
    elif found.due_ms:
        told += f", due {time_of(found.due_ms)}"
    elif found.failed_ms:
        told += f", failed {time_of(found.failed_ms)}"
    console.print(Text(printable(told)), soft_wrap=True)
    for text in filter(None, (head.cause, head.excerpt)):
        console.print(Text(f"  {one_line(text)}", style="yellow"), soft_wrap=True)


def dead(
    name: SubscriptionArgument,
    group: Annotated[
        str, typer.Option("--group", help="All of this group; else heads of groups alone.")
    ] = "",
    after: Annotated[str, typer.Option("--failed-after", help=f"Failed since {MOMENT}")] = "",
    before: Annotated[str, typer.Option("--failed-before", help=f"Failed before {MOMENT}")] = "",
    cause: Annotated[
        str, typer.Option("--cause", help="A status, the name of a failure, or words of the cause.")
    ] = "",
    payload: Annotated[bool, typer.Option("--payload", help="With the messages; in JSON.")] = False,
    limit: LimitOption = 100,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """List dead letters with their cause, the oldest failure of each shard first."""
    clock = Clock()
    with open_station(url, key, scope="read") as station:
        letters = station.subscriptions.dead_letters(
            name,
            group=group,
            failed_after=parse_moment(after, clock=clock) if after else None,
            failed_before=parse_moment(before, clock=clock) if before else None,
            cause=cause,
            payload=payload,
        )
        found = list(islice(letters, limit))
    if as_json:
        emit_json({"dead_letters": found})
        return
    emit_table(
        ("failed at", "id", "group", "state", "behind", "attempts", "cause"),
        [
            (
                time_of(each.failed_ms),
                printable(each.id),
                printable(each.group or ""),
                each.state,
                each.behind or "",
                each.attempts,
                printable(each.cause or each.failure),
            )
            for each in found
        ],
        empty="No dead letters.",
        numbers=("behind", "attempts"),
        whole=("failed at",),
    )


# -- Standings -------------------------------------------------------------------------------


def show_standing(standing: SubscriptionStanding) -> None:
    """Sums, and a row for each shard."""
    told = (
        f"{standing.lag:,} wait in the topic, {standing.retry:,} in retry, {standing.dead:,} dead"
    )
    if standing.parked:
        told += f"; {standing.parked:,} groups are parked"
    console.print(Text(told), soft_wrap=True)
    _print_rows(standing, None, 0)


def _print_rows(
    now: SubscriptionStanding, before: SubscriptionStanding | None, seconds: float
) -> None:
    columns, rows = _rows(now, before, seconds)
    emit_table(columns, rows, empty="It has no shards yet.", numbers=_NUMBERS)


def _table(now: SubscriptionStanding, before: SubscriptionStanding | None, seconds: float) -> Table:
    columns, rows = _rows(now, before, seconds)
    sums = ("all", now.state, "", f"{now.lag:,}", "", f"{now.retry:,}", f"{now.dead:,}")
    return make_table(columns, [*rows, (*sums, f"{now.parked:,}", "", "")], numbers=_NUMBERS)


def _rows(
    now: SubscriptionStanding, before: SubscriptionStanding | None, seconds: float
) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    former = {each.shard: each.lag for each in before.shards} if before else {}
    columns = ("shard", "state", "owner", "lag", "lag/s", "retry", "dead", "parked", "next due")
    rows: list[tuple[object, ...]] = [
        (
            each.shard,
            f"{each.state} ({each.reason})" if each.reason == "breaker_open" else each.state,
            each.owner or "nobody",
            f"{each.lag:,}",
            f"{(each.lag - former[each.shard]) / seconds:+,.0f}" if each.shard in former else "",
            f"{each.retry:,}",
            f"{each.dead:,}",
            f"{each.parked:,}",
            time_of(each.next_due_ms) if each.next_due_ms else "",
        )
        for each in now.shards
    ]
    return columns, rows
