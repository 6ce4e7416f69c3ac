"""`waystation tx list`: transactions of the store, or of the archive."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from waystation.cli.options import JsonOption, KeyOption, UrlOption
from waystation.cli.output import emit_json, emit_table, printable
from waystation.cli.station import open_station
from waystation.cli.topic_messages import time_of
from waystation.errors import InvalidInputError


def list_(
    state: Annotated[
        str, typer.Option("--state", help="Only these: queued, running, sleeping, complete, …")
    ] = "",
    pipeline: Annotated[str, typer.Option("--pipeline", help="Only of this pipeline.")] = "",
    external_id: Annotated[
        str, typer.Option("--external-id", help="Only the newest that has it.")
    ] = "",
    archived: Annotated[
        bool, typer.Option("--archived", help="What the archive has, newest first.")
    ] = False,
    status: Annotated[
        str,
        typer.Option("--status", help="With --archived, only these: failed,timeout; sleeping; …"),
    ] = "",
    since: Annotated[
        str, typer.Option("--since", help="With --archived: a time, or how long ago: 2d.")
    ] = "",
    most: Annotated[int, typer.Option("--most", help="At most so many.", min=1)] = 100,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """List transactions; those that have ended are in the archive after a while."""
    if archived and (state or external_id):
        raise InvalidInputError("--archived goes with --status, --pipeline and --since.")
    if not archived and (status or since):
        raise InvalidInputError("--status and --since need --archived.")
    found: dict[str, Any] = {}
    with open_station(url, key, scope="read") as station:
        transactions = station.transactions
        pages = (
            transactions.archived(status=status, pipeline=pipeline, since=since or None)
            if archived
            else transactions.list(state=state, pipeline=pipeline, external_id=external_id)
        )
        for each in pages:
            found[each.id] = each
            if len(found) == most:
                break
    rows = list(found.values())
    if as_json:
        emit_json({"transactions": rows})
        return
    emit_table(
        ("transaction", "external id", "pipeline", "state", "status", "since"),
        [
            (
                each.id,
                printable(each.external_id or ""),
                each.pipeline,
                each.state,
                each.status,
                time_of(each.since_ms),
            )
            for each in rows
        ],
        empty="No such transactions.",
        whole=("transaction",),
    )
