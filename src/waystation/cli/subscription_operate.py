"""`waystation subscription redrive | skip | purge | reset | operations`: what is done to messages.

An operation is the station's: it goes on when the command that began it is ended.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from waystation.cli.options import JsonOption, KeyOption, SubscriptionArgument, UrlOption
from waystation.cli.output import console, emit_json, emit_table, printable, problems
from waystation.cli.patience import note, patiently
from waystation.cli.positions import MOMENT, parse_moment
from waystation.cli.station import open_station
from waystation.cli.subscription_look import GroupArgument
from waystation.cli.topic_messages import time_of
from waystation.errors import ExitCode, InvalidInputError, WaitTimeoutError
from waystation.runtime.clock import Clock

if TYPE_CHECKING:
    from waystation.client import OperationInfo
    from waystation.client.sync_operations import Operation

GroupOption = Annotated[str, typer.Option("--group", help="Those of this group.")]
MessageOption = Annotated[
    str, typer.Option("--message", help="This one, and those of its group before it.")
]
AfterOption = Annotated[str, typer.Option("--failed-after", help=f"Failed since {MOMENT}")]
BeforeOption = Annotated[str, typer.Option("--failed-before", help=f"Failed before {MOMENT}")]
AllOption = Annotated[bool, typer.Option("--all", help="All dead letters.")]
RateOption = Annotated[
    float | None, typer.Option("--rate", help="Messages in a second, at most.", min=0.001)
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Count, and do nothing.")]
NoWaitOption = Annotated[bool, typer.Option("--no-wait", help="Do not wait for its end.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
#: How often the progress bar moves.
_LOOK = "500ms"


def redrive(
    name: SubscriptionArgument,
    group: GroupOption = "",
    message: MessageOption = "",
    after: AfterOption = "",
    before: BeforeOption = "",
    everything: AllOption = False,
    rate: RateOption = None,
    dry_run: DryRunOption = False,
    no_wait: NoWaitOption = False,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Deliver dead letters again, in the order of their group; exit code 1 if some fail again."""
    asked = _selection(group, message, after, before, everything)
    with open_station(url, key) as station:
        operation = station.subscriptions.redrive(name, **asked, rate=rate, dry_run=dry_run)
        _follow(operation, wait=not no_wait, as_json=as_json)


def skip(
    name: SubscriptionArgument,
    group: GroupArgument,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Give up the message that a group waits for, for good; those behind it are delivered."""
    with open_station(url, key) as station:
        operation = station.subscriptions.skip(name, group=group)
        _follow(operation, wait=False, as_json=as_json)


def purge(
    name: SubscriptionArgument,
    group: GroupOption = "",
    message: Annotated[str, typer.Option("--message", help="This one, if it stands alone.")] = "",
    after: AfterOption = "",
    before: BeforeOption = "",
    everything: AllOption = False,
    rate: RateOption = None,
    dry_run: DryRunOption = False,
    no_wait: NoWaitOption = False,
    yes: YesOption = False,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Give up dead letters for good; of a named group also what waits in retry."""
    asked = _selection(group, message, after, before, everything)
    with open_station(url, key, scope="admin") as station:
        if not yes and not dry_run:
            found = station.subscriptions.purge(name, **asked, dry_run=True).count
            _confirm(f"Give up {found:,} messages of {name} for good?")
        operation = station.subscriptions.purge(name, **asked, rate=rate, dry_run=dry_run)
        _follow(operation, wait=not no_wait, as_json=as_json)


def reset(
    name: SubscriptionArgument,
    to: Annotated[str, typer.Option("--to", help=f"Where to: beginning, end, {MOMENT}")],
    yes: YesOption = False,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Deliver the topic anew from somewhere; what is in retry or dead stays, and comes first."""
    where: Any = to if to in ("beginning", "end") else parse_moment(to, clock=Clock())
    if not yes:
        _confirm(f"Move {name} to {to}? What lies behind that is delivered again or not at all.")
    with open_station(url, key, scope="admin") as station:
        operation = station.subscriptions.reset(name, to=where)
        _follow(operation, wait=True, as_json=as_json)


def operations(
    name: SubscriptionArgument,
    operation_id: Annotated[str, typer.Argument(help="Only this one.", metavar="[ID]")] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end.")] = False,
    pause: Annotated[bool, typer.Option("--pause", help="Mark nothing more for now.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where it was.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Mark nothing more.")] = False,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """List redrives, skips, purges and resets; or look at one, pause, resume or cancel it."""
    if sum((wait, pause, resume, cancel)) > 1:
        raise InvalidInputError("Give one of --wait, --pause, --resume and --cancel.")
    if (wait or pause or resume or cancel) and not operation_id:
        raise InvalidInputError("Which one?", hint=f"`waystation subscription operations {name}`")
    with open_station(url, key, scope="write" if pause or resume or cancel else "read") as station:
        if not operation_id:
            found = list(station.subscriptions.operations(name))
        else:
            operation = station.subscriptions.operation(name, operation_id)
            verbs = ((pause, operation.pause), (resume, operation.resume))
            for wanted, verb in (*verbs, (cancel, operation.cancel)):
                if wanted:
                    verb()
            _follow(operation, wait=wait, as_json=as_json)
            return
    if as_json:
        emit_json({"operations": found})
        return
    emit_table(
        ("id", "kind", "state", "begun", "messages", "settled", "failed again", "open"),
        [
            (
                each.id,
                each.kind,
                each.state,
                time_of(each.begun_ms),
                f"{each.count:,}",
                f"{each.progress.settled:,}",
                f"{each.progress.parked_again:,}",
                f"{each.progress.open:,}",
            )
            for each in found
        ],
        empty="No operations.",
        numbers=("messages", "settled", "failed again", "open"),
        whole=("id",),
    )


def _selection(
    group: str, message: str, after: str, before: str, everything: bool
) -> dict[str, Any]:
    """What an operation is about; all only by name, since it cannot be undone."""
    clock = Clock()

    def moment(text: str) -> datetime | None:
        return parse_moment(text, clock=clock) if text else None

    asked = {
        "group": group,
        "message": message,
        "failed_after": moment(after),
        "failed_before": moment(before),
    }
    chosen = {name: value for name, value in asked.items() if value}
    if bool(chosen) == everything:
        raise InvalidInputError(
            "Say which messages." if not chosen else "--all goes with nothing else.",
            hint="Give --group, --message, --failed-after or --failed-before; or --all.",
        )
    return chosen


def _confirm(question: str) -> None:
    if not typer.confirm(question):
        raise typer.Exit(ExitCode.FAILED)


def _follow(operation: Operation, *, wait: bool, as_json: bool) -> None:
    """Tells of an operation, at its end if that is waited for."""
    if wait and not operation.ended:
        try:
            _wait(operation, hidden=as_json)
        except KeyboardInterrupt:
            command = f"waystation subscription operations {operation.subscription} {operation.id}"
            note(f"it goes on; see it with `{command}`")
            raise typer.Exit(ExitCode.INTERRUPTED) from None
    info = operation.info
    if as_json:
        emit_json(info)
    elif not info.id:
        _show_dry_run(info)
    else:
        _show(info)
    if info.progress.parked_again:
        raise typer.Exit(ExitCode.FAILED)


def _wait(operation: Operation, *, hidden: bool) -> None:
    from rich.progress import (  # noqa: PLC0415 (only these commands need it)
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    hidden = hidden or not problems.is_terminal
    with Progress(*columns, console=problems, transient=True, disable=hidden) as progress:
        bar = progress.add_task(operation.info.kind, total=None)
        while not operation.ended:
            try:
                operation.wait(_LOOK)
            except WaitTimeoutError:
                patiently(operation.get)
            told = operation.info
            again = told.progress.parked_again
            progress.update(
                bar,
                completed=told.progress.settled,
                total=told.count or None,
                description=f"{told.kind}, {again:,} failed again" if again else told.kind,
            )


def _show_dry_run(info: OperationInfo) -> None:
    told = f"would {info.kind} {_messages(info.count)}"
    if info.progress.matched > 1:
        told += f", of {info.progress.matched:,} groups or alone"
    console.print(Text(told))
    if info.sample:
        emit_table(
            ("such as", "group", "attempts", "last failure", "cause"),
            [
                (
                    printable(each.id),
                    printable(each.group or ""),
                    each.attempts,
                    time_of(each.last_failure_ms) if each.last_failure_ms else "",
                    printable(each.cause or each.failure),
                )
                for each in info.sample
            ],
            empty="",
            numbers=("attempts",),
        )


def _show(info: OperationInfo) -> None:
    told = f"{info.kind} {info.id} is {info.state}"
    progress = info.progress
    if info.kind != "reset":
        told += f": {_messages(info.count)}, {progress.settled:,} settled"
    if progress.parked_again:
        told += f", {progress.parked_again:,} failed again (what is behind them waits)"
    if progress.open:
        told += f", {progress.open:,} heads open"
    console.print(Text(told), soft_wrap=True)


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"
