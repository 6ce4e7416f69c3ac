"""`waystation tx`: start transactions, look at them, wait for them, reach them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.text import Text

from waystation.cli.options import JsonOption, KeyOption, UrlOption
from waystation.cli.output import console, emit_json, emit_table, printable
from waystation.cli.patience import note
from waystation.cli.station import open_station
from waystation.cli.tx_list import list_
from waystation.cli.tx_shown import show, show_journal, show_progress
from waystation.cli.webhooks import webhook
from waystation.errors import ExitCode, InvalidInputError
from waystation.runtime.durations import duration_ms

if TYPE_CHECKING:
    from waystation.client import Transaction, TransactionSummary

app = typer.Typer(no_args_is_help=True, help="Transactions: durable runs of pipelines.")

IdArgument = Annotated[str, typer.Argument(help="Id of the transaction.")]
WaitOption = Annotated[
    str, typer.Option("--wait", help="Wait so long for its end: 30s, 5m.", metavar="TIME")
]


@app.command()
def start(
    type_: Annotated[str, typer.Argument(help="Name of a pipeline.", metavar="TYPE")],
    data: Annotated[str, typer.Argument(help="JSON; - reads standard input.")] = "null",
    external_id: Annotated[
        str, typer.Option("--external-id", help="Yours; with it there is only one.")
    ] = "",
    metadata: Annotated[
        list[str] | None, typer.Option("--metadata", "-m", help="As name=value; may be repeated.")
    ] = None,
    start_at: Annotated[
        str, typer.Option("--start-at", help="A time, or how long from now: 5m.")
    ] = "",
    deadline: Annotated[
        str, typer.Option("--deadline", help="A time, or how long from now: 2h.")
    ] = "",
    wait: WaitOption = "",
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Start a transaction."""
    given = _json(sys.stdin.read() if data == "-" else data)
    named = _metadata(metadata)
    if wait:
        # Before anything is started: a wait that cannot be is no reason to lose its id.
        duration_ms(wait, field="wait")
    with open_station(url, key) as station:
        started = station.transactions.start(
            type_,
            given,
            external_id=external_id,
            metadata=named,
            start_at=start_at or None,
            deadline=deadline or None,
        )
        summary = started.summary
        for warning in summary.warnings:
            note(printable(warning))
        if wait:
            note(_told(started))
            summary = started.wait(wait)
    if as_json:
        emit_json(summary)
    elif wait:
        show(summary)
    else:
        console.print(Text(_told(started)), soft_wrap=True)
    _end_with(summary, waited=bool(wait))


@app.command()
def get(
    transaction_id: Annotated[str, typer.Argument(help="Id of the transaction.")] = "",
    external_id: Annotated[
        str, typer.Option("--external-id", help="Instead of the id: the newest that has it.")
    ] = "",
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show how a transaction stands, and its output."""
    if bool(transaction_id) == bool(external_id):
        raise InvalidInputError("Give an id, or --external-id.")
    with open_station(url, key, scope="read") as station:
        if external_id:
            summary = station.transactions.by_external_id(external_id).summary
        else:
            summary = station.transactions.get(transaction_id)
    if as_json:
        emit_json(summary)
    else:
        show(summary)


@app.command()
def wait(
    transaction_id: IdArgument,
    at_most: Annotated[str, typer.Argument(help="How long: 30s, 5m.", metavar="TIME")] = "30s",
    progress: Annotated[
        bool, typer.Option("--progress", help="Print progress reports as they come.")
    ] = False,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Wait for the end of a transaction; exit code 1 unless it is a success."""
    told = (lambda report: show_progress(report, as_json=as_json)) if progress else None
    with open_station(url, key, scope="read") as station:
        summary = station.transactions.wait(transaction_id, at_most, progress=told)
    if as_json:
        emit_json(summary)
    else:
        show(summary)
    _end_with(summary, waited=True)


app.command("list")(list_)
app.command()(webhook)


@app.command()
def cancel(
    transaction_id: IdArgument,
    cause: Annotated[str, typer.Option("--cause", help="Why; it is kept.")] = "",
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Cancel a transaction: at once, or at the next commit of what runs."""
    with open_station(url, key) as station:
        done = station.transactions.cancel(transaction_id, cause)
    if as_json:
        emit_json(done)
        return
    told = {
        "asked": "is to end",
        "cancelled": "is cancelled",
        "known": "was cancelled before",
    }
    console.print(Text(f"{transaction_id} {told[done.outcome]}"), soft_wrap=True)


@app.command()
def wake(
    transaction_id: IdArgument,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Wake a transaction that sleeps, before its time."""
    with open_station(url, key) as station:
        station.transactions.wake(transaction_id)
    if as_json:
        emit_json({"id": transaction_id})
    else:
        console.print(Text(f"{transaction_id} is woken"), soft_wrap=True)


@app.command()
def switch(
    transaction_id: IdArgument,
    name: Annotated[str, typer.Argument(help="Name of the switch.")],
    value: Annotated[str, typer.Argument(help="true, false, a number, or a text.")] = "",
    delete: Annotated[bool, typer.Option("--delete", help="Delete it.")] = False,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Set a switch of a transaction, or delete it."""
    if delete == bool(value):
        raise InvalidInputError("Give a value, or --delete.")
    with open_station(url, key) as station:
        if delete:
            done = station.transactions.delete_switch(transaction_id, name)
        else:
            done = station.transactions.set_switch(transaction_id, name, _scalar(value))
    if as_json:
        emit_json(done)
        return
    told = {"nochange": "is as before", "updated": "is set", "woken": "is set, and was waited for"}
    outcome = "is deleted" if delete and done.outcome != "nochange" else told[done.outcome]
    console.print(Text(f"{name} {outcome}"), soft_wrap=True)


@app.command()
def journal(
    transaction_id: IdArgument,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show what happened in a transaction, step by step."""
    with open_station(url, key, scope="read") as station:
        found = station.transactions.journal(transaction_id)
    if as_json:
        emit_json(found)
    else:
        show_journal(found)


@app.command()
def children(
    transaction_id: IdArgument,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """List the children of the Parallel that is under way, or that it has ended in."""
    with open_station(url, key, scope="read") as station:
        found = station.transactions.children(transaction_id)
    if as_json:
        emit_json(found)
        return
    rows = [(each.number, each.id, each.state, each.status) for each in found.children]
    columns = ("number", "transaction", "state", "status")
    emit_table(
        columns,
        rows,
        empty="No Parallel is under way.",
        numbers=("number",),
        whole=("transaction",),
    )
    if rows:
        told = f"{found.done:,} of {found.total:,} have ended; {found.policy}"
        console.print(Text(told, style="dim"))


def _told(started: Transaction) -> str:
    return f"{started.id} was there already" if started.duplicate else f"started {started.id}"


def _end_with(summary: TransactionSummary, *, waited: bool) -> None:
    if waited and not summary.succeeded:
        raise typer.Exit(ExitCode.FAILED)


def _json(text: str) -> msgspec.Raw:
    try:
        return msgspec.Raw(bytes(msgspec.json.decode(text.encode(), type=msgspec.Raw)))
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidInputError(f"The data is not JSON: {error}.", field="data") from error


def _metadata(texts: list[str] | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidInputError(f"{text!r} is no metadata.", hint="Give it as name=value.")
        try:
            found[name] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            found[name] = value
    return found


def _scalar(text: str) -> str | int | float | bool:
    """As people write it: JSON where it is a scalar, else text."""
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    return value if isinstance(value, str | int | float | bool) else text
