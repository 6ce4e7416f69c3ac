"""`waystation webhooks` and `tx webhook`: replies that wait, and those that were given up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from waystation.cli.options import JsonOption, KeyOption, UrlOption
from waystation.cli.output import console, emit_json, emit_table, printable
from waystation.cli.station import open_station
from waystation.cli.topic_messages import time_of
from waystation.errors import InvalidInputError

if TYPE_CHECKING:
    from waystation.client import ReplyStanding

app = typer.Typer(
    no_args_is_help=True, help="Replies of transactions: to webhooks, channels and topics."
)


@app.command("list")
def list_replies(
    waiting: Annotated[
        bool, typer.Option("--waiting", help="Those that wait, not those given up.")
    ] = False,
    most: Annotated[int, typer.Option("--most", help="At most so many.", min=1)] = 100,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """List replies that were given up, with the cause."""
    rows = []
    with open_station(url, key, scope="read") as station:
        webhooks = station.webhooks
        for each in webhooks.waiting() if waiting else webhooks.failed():
            rows.append(each)
            if len(rows) == most:
                break
    if as_json:
        emit_json({"replies": rows})
        return
    at = ("next", "paused") if waiting else ("given up",)
    emit_table(
        ("transaction", "receiver", "event", "attempts", *at, "cause"),
        [
            (
                each.transaction_id,
                each.receiver,
                each.event,
                each.attempts,
                time_of(each.at_ms),
                *((_pause(each.paused_ms),) if waiting else ()),
                printable(each.cause),
            )
            for each in rows
        ],
        empty="Nothing waits." if waiting else "Nothing was given up.",
        numbers=("attempts",),
        whole=("transaction",),
    )


def _pause(paused_ms: int | None) -> str:
    return "" if paused_ms is None else f"{paused_ms / 1000:.1f} s"


@app.command()
def redrive(url: UrlOption = "", key: KeyOption = "", as_json: JsonOption = False) -> None:
    """Send everything again that was given up, with as many attempts as new ones."""
    with open_station(url, key) as station:
        count = station.webhooks.redrive()
    _tell("redriven", count, as_json=as_json)


def webhook(
    transaction_id: Annotated[str, typer.Argument(help="Id of the transaction.")],
    redrive_: Annotated[
        bool, typer.Option("--redrive", help="Send again what was given up.")
    ] = False,
    discard: Annotated[
        bool, typer.Option("--discard", help="Forget what waits and what was given up.")
    ] = False,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show whether a transaction's client was told, or set it going again."""
    if redrive_ and discard:
        raise InvalidInputError("Give --redrive or --discard, not both.")
    with open_station(url, key, scope="write" if redrive_ or discard else "read") as station:
        transactions = station.transactions
        if redrive_:
            count = transactions.redrive_webhook(transaction_id)
            _tell("redriven", count, as_json=as_json)
        elif discard:
            count = transactions.discard_webhook(transaction_id)
            _tell("discarded", count, as_json=as_json)
        elif as_json:
            emit_json(transactions.webhook(transaction_id))
        else:
            _show(transactions.webhook(transaction_id))


def _show(found: ReplyStanding) -> None:
    told = "was not told its end yet"
    if found.notified_ms is not None:
        told = f"was told its end at {time_of(found.notified_ms)}"
    console.print(Text(f"the client of {found.transaction_id} {told}"), soft_wrap=True)
    if found.comment:
        console.print(Text(f"  {printable(found.comment)}", style="dim"), soft_wrap=True)
    emit_table(
        ("kind", "where", "receiver", "is", "state", "event", "attempts", "at", "cause"),
        [
            (
                each.kind,
                printable(each.where),
                each.receiver,
                each.standing,
                each.state,
                each.event,
                each.attempts,
                "" if each.at_ms is None else time_of(each.at_ms),
                printable(each.cause),
            )
            for each in found.receivers
        ],
        empty="It has no receivers.",
        numbers=("attempts",),
    )
    if found.attempts:
        emit_table(
            ("at", "id", "attempt", "verdict", "answer", "seconds", "reply"),
            [
                (
                    time_of(each.at_ms),
                    each.id,
                    each.attempt,
                    each.verdict,
                    each.status or each.failure,
                    f"{each.seconds:.3f}",
                    printable(each.reply[:60]),
                )
                for each in found.attempts
            ],
            empty="",
            numbers=("attempt", "seconds"),
            whole=("at",),
        )


def _tell(verb: str, count: int, *, as_json: bool) -> None:
    if as_json:
        emit_json({"count": count})
    else:
        console.print(Text(f"{verb} {count:,}"))
