"""How the replies of one transaction stand: who was told, what is on its way, what was tried."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal, cast
from urllib.parse import urlsplit

import msgspec

from waystation.delivery.desk import AttemptRow, attempt_row
from waystation.delivery.records import AttemptRecord
from waystation.delivery.states import EndpointStates, Survey
from waystation.store.client import Store
from waystation.transactions import names
from waystation.transactions.found import Found
from waystation.transactions.record import decode
from waystation.transactions.reply_lanes import (
    KIND_NAMES,
    KindName,
    Receiver,
    failed_list,
    item_hash,
    item_of,
    lane_of,
    parse_receiver,
    receivers_in,
)


class ReceiverRow(msgspec.Struct, frozen=True, kw_only=True):
    """A receiver of one transaction, and what is on its way to it."""

    kind: KindName
    #: Its URL without the query, or its name.
    where: str
    #: Its name among endpoints, to enable it by.
    receiver: str
    #: `disabled`: it has answered 410. `held`: it is left alone for a while.
    standing: Literal["enabled", "disabled", "held"]
    #: `idle`: nothing is on its way, everything was sent or nothing has happened yet.
    state: Literal["failed", "waiting", "idle"]
    #: complete, progress or status; empty when idle, as all below.
    event: str = ""
    attempts: int = 0
    cause: str = ""
    #: When it was given up; when it is tried next.
    at_ms: int | None = None


class ReplyStanding(msgspec.Struct, frozen=True, kw_only=True):
    """How the replies of one transaction stand."""

    transaction_id: str
    #: `delivered`: its webhook was told the end. `failed`: something was given up, see `comment`.
    status: Literal["", "delivered", "failed"]
    comment: str
    latest_ms: int | None
    #: When the client was told the end first, by a webhook or a wait.
    notified_ms: int | None
    receivers: list[ReceiverRow]
    #: Those that are kept, oldest first.
    attempts: list[AttemptRow]


class _Asked(msgspec.Struct):
    """What the metadata says about replies, and nothing else tells."""

    webhook: str = ""


_asked = msgspec.json.Decoder(_Asked).decode


async def standing_of(
    store: Store, found: Found, attempts: Sequence[AttemptRecord]
) -> ReplyStanding:
    """How the replies of a transaction stand."""
    told, survey = found.extras, await EndpointStates(store).survey()
    parsed = map(parse_receiver, receivers_of(found))
    rows = [_receiver(store, found, each, survey) for each in parsed if each is not None]
    status = told.get(b"webhook_status", b"").decode()
    return ReplyStanding(
        transaction_id=found.id,
        status=cast("Literal['', 'delivered', 'failed']", status),
        comment=told.get(b"webhook_comment", b"").decode(errors="replace"),
        latest_ms=_ms(told.get(b"webhook_latest")),
        notified_ms=_ms(told.get(b"notifiedTime")),
        receivers=await asyncio.gather(*rows),
        attempts=[attempt_row(each) for each in attempts],
    )


def receivers_of(found: Found) -> list[str]:
    """The receivers of a transaction, by name."""
    return receivers_in(found.extras.get(b"reply", b"").decode())


async def _receiver(store: Store, found: Found, receiver: Receiver, survey: Survey) -> ReceiverRow:
    """A receiver, and what is on its way to it."""
    cell, item = names.cell_of(found.id), item_of(found.id, receiver.kind)
    name = f"{receiver.kind}.{receiver.project}.{receiver.name}"
    fields = (item, f"{item}.attempts", f"{item}.cause")
    due, failed, words = await asyncio.gather(
        store.call("ZSCORE", lane_of(cell, name), item, repeatable=True),
        store.call("ZSCORE", failed_list(cell, receiver.project), item, repeatable=True),
        store.call("HMGET", item_hash(cell), *fields, repeatable=True),
    )
    row = ReceiverRow(
        kind=KIND_NAMES[receiver.kind],
        where=_url_of(found) if receiver.kind == "w" else receiver.name,
        receiver=name,
        standing=_standing(name, survey),
        state="idle",
    )
    score = failed if due is None else due
    if score is None:
        return row
    event, attempts, cause = ((each or b"").decode(errors="replace") for each in words)
    return msgspec.structs.replace(
        row,
        state="waiting" if due is not None else "failed",
        event=event.partition(" ")[0],
        attempts=int(attempts or 0),
        cause=cause,
        at_ms=int(float(score)),
    )


def _url_of(found: Found) -> str:
    """Without its query, which may be a secret."""
    return urlsplit(_asked(decode(found.state).metadata).webhook)._replace(query="").geturl()


def _standing(receiver: str, survey: Survey) -> Literal["enabled", "disabled", "held"]:
    if receiver in survey.disabled:
        return "disabled"
    return "held" if receiver in survey.held_ms else "enabled"


def _ms(text: bytes | None) -> int | None:
    return int(text) if text else None
