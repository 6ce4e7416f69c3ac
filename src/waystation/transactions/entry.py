"""The scripts that bring transactions in: start, and the children of a Parallel.

Each item is started whole or, with its reason, not at all; items of one call do not hinder each
other. Only a full record log refuses a call as a whole. A call whose reply was lost may be sent
again: an id belongs to one call, so `known` there means started.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from waystation.logs.streams import raise_refusal
from waystation.store.client import Store
from waystation.store.scripts import script
from waystation.transactions import names
from waystation.transactions.cells import BATCH_MAX, Terms
from waystation.transactions.held import Held

_FAN_OUT = script(__package__, "fan_out")
_START = script(__package__, "start")

#: First words of a reply that refuses the whole call.
_REFUSALS = (b"full", b"missing", b"sealed")


class NewTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction as it is to begin."""

    id: str
    owner: str
    pipeline: str
    version: str
    group: str
    #: The packed state.
    state: bytes
    #: msgpack for the record log; empty for none.
    detail: bytes = b""
    external_id: str = ""
    delay_ms: int = 0
    #: 0: no deadline.
    deadline_in_ms: int = 0
    #: Started by ourselves: the pipeline need be no type, nor the version the active one.
    inside: bool = False
    #: Who is to hear of it: `reply_word`; empty for nobody.
    reply: str = ""


class Started(msgspec.Struct, frozen=True):
    """What came of one start."""

    outcome: Literal["started", "known", "duplicate", "stale", "unknown-pipeline", "not-a-type"]
    #: State of what is known; id that has the external id; version that is active.
    detail: str = ""


class FanOut(msgspec.Struct, frozen=True):
    """What came of a call that creates children."""

    outcome: Literal["done", "refused", "unknown"]
    #: Of the parent.
    version: int
    log_end: int
    #: Number of the last child that was created, or counted as cancelled.
    created: int


class Entry:
    """Runs the scripts that bring in."""

    def __init__(self, store: Store, terms: Terms) -> None:
        self._store = store
        self._terms = terms.argument

    async def start(self, cell: int, items: Sequence[NewTransaction]) -> list[Started]:
        """Starts transactions of one cell; LogFullError: none of them."""
        assert len(items) <= BATCH_MAX, "more ids than one call may have"
        if not items:
            return []
        arguments = [self._terms, *_words(items)]
        reply = await self._store.run(_START, [names.log(cell)], arguments)
        if reply[0] in _REFUSALS:
            raise_refusal(reply, names.LOG, cell)
        return [Started(reply[i].decode(), reply[i + 1].decode()) for i in range(2, len(reply), 2)]

    async def fan_out(
        self, parent: Held, *, round_: int, first: int, items: Sequence[NewTransaction]
    ) -> FanOut:
        """Creates the children `first`, `first` + 1, … of an open Parallel; LogFullError: none.

        Those that are there already are passed over, so a call may be sent again, by whoever holds
        the parent then.
        """
        assert len(items) <= BATCH_MAX, "more ids than one call may have"
        cell = names.cell_of(parent.id)
        held = (parent.id, parent.epoch, parent.commits)
        arguments = [self._terms, *held, round_, first, *_words(items)]
        reply = await self._store.run(_FAN_OUT, [names.log(cell)], arguments)
        if reply[0] in _REFUSALS:
            raise_refusal(reply, names.LOG, cell)
        return FanOut(reply[0].decode(), int(reply[1]), int(reply[2]), int(reply[3]))


def _words(items: Sequence[NewTransaction]) -> list[str | bytes | int]:
    """As the include `admit` reads them."""
    return [
        word
        for each in items
        for word in (
            each.id,
            f"{each.group} {each.pipeline} {each.owner} {each.version} {each.inside:d}",
            each.external_id,
            each.delay_ms,
            each.deadline_in_ms,
            each.state,
            each.detail,
            each.reply,
        )
    ]
