"""The desk of replies: what waits, what was given up and why, and the ways to set it going again.

It reads the store, so it tells about all processes. A project sees what is its own: failed lists
and receivers carry its name, and a transaction is asked for as its owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Literal

import msgspec

from waystation.delivery.outbox import Outbox
from waystation.delivery.records import AttemptRecord
from waystation.delivery.states import EndpointStates
from waystation.errors import InvalidInputError, TransactionUnknownError
from waystation.transactions import names
from waystation.transactions.found import Found
from waystation.transactions.reply_lanes import (
    KINDS,
    failed_list,
    item_hash,
    item_of,
    lane_of,
    parse_receiver,
    receiver_of_lane,
    transaction_of,
)
from waystation.transactions.reply_standing import ReplyStanding, receivers_of, standing_of
from waystation.transactions.signals import Signals

#: Items that one round trip is about.
_AT_ONCE = 100


class ReplyRow(msgspec.Struct, frozen=True, kw_only=True):
    """A reply that waits, or was given up."""

    transaction_id: str
    #: `w.<project>.<digest of the URL>`, `c.<project>.<channel>`, `t.<project>.<topic>`.
    receiver: str
    #: complete, progress or status.
    event: str
    state: Literal["failed", "waiting"]
    attempts: int
    #: Why the last attempt failed; empty if none has.
    cause: str
    #: When it was given up; when it is tried next.
    at_ms: int
    #: Of a waiting reply whose receiver is paused because it fails or asked for it: about how many
    #: ms until the next request.
    paused_ms: int | None = None


class ReplyDesk:
    """Looks at replies, and changes what becomes of them."""

    def __init__(self, outbox: Outbox, signals: Signals, *, cells: int) -> None:
        self._outbox = outbox
        self._store = outbox.store
        self._signals = signals
        self._cells = cells
        self._states = EndpointStates(outbox.store)

    async def page(
        self, project: str, *, state: Literal["failed", "waiting"], cursor: str, limit: int
    ) -> tuple[list[ReplyRow], str]:
        """A page of replies, oldest first in each list, and the cursor of the next page."""
        after, start = _place(cursor)
        rows: list[ReplyRow] = []
        paused_ms = await self._paused_ms() if state == "waiting" else {}
        for key in await self._lists(project, state):
            if key < after:
                continue
            skip = start if key == after else 0
            pause = paused_ms.get(receiver_of_lane(key)) if paused_ms else None
            part = await self._rows(key, state, skip, limit - len(rows), paused_ms=pause)
            rows += part
            if len(rows) >= limit:
                return rows, f"{skip + len(part)}~{key}"
        return rows, ""

    async def standing(self, project: str, transaction_id: str) -> ReplyStanding:
        """How the replies of a transaction stand."""
        found = await self._found(project, transaction_id)
        attempts = await self._attempts(project, transaction_id)
        return await standing_of(self._store, found, attempts)

    async def attempts(self, project: str, transaction_id: str) -> list[AttemptRecord]:
        """The attempts that are kept of a transaction's replies, oldest first."""
        await self._found(project, transaction_id)
        return await self._attempts(project, transaction_id)

    async def _attempts(self, project: str, transaction_id: str) -> list[AttemptRecord]:
        lane = lane_of(names.cell_of(transaction_id), f"w.{project}.-")
        records = await self._outbox.records(lane)
        return [each for each in records if transaction_of(each.id) == transaction_id]

    async def redrive(self, project: str, transaction_id: str = "") -> int:
        """Sends again what was given up, of a transaction or of all; returns how many."""
        redriven = 0
        async for failed in self._failed(project, transaction_id):
            calls = (self._outbox.redrive(lane, item_id=item) for lane, item in failed)
            redriven += sum(await asyncio.gather(*calls))
        if transaction_id and not redriven:
            await self._found(project, transaction_id)
        return redriven

    async def discard(self, project: str, transaction_id: str = "") -> int:
        """Forgets what was given up, of all; of one transaction also what waits; how many."""
        discarded = 0
        async for failed in self._failed(project, transaction_id):
            calls = (self._outbox.discard(lane, item_id=item) for lane, item in failed)
            discarded += sum(await asyncio.gather(*calls))
        if transaction_id:
            discarded += await self._discard_waiting(project, transaction_id, known=discarded > 0)
        return discarded

    async def _discard_waiting(self, project: str, transaction_id: str, *, known: bool) -> int:
        """Of one whose state is gone, nothing waits that could be found."""
        (found,) = await self._signals.get(project, [transaction_id])
        if found is None and not known:
            raise _unknown(transaction_id)
        cell, discarded = names.cell_of(transaction_id), 0
        for receiver in receivers_of(found) if found is not None else ():
            parsed = parse_receiver(receiver)
            if parsed is not None:
                item, lane = item_of(transaction_id, parsed.kind), lane_of(cell, receiver)
                discarded += await self._outbox.discard(lane, waiting=True, item_id=item)
        return discarded

    # -- Lists -------------------------------------------------------------------------------

    async def _lists(self, project: str, state: Literal["failed", "waiting"]) -> list[str]:
        """The keys of a project's lists, in their order."""
        if state == "failed":
            return sorted(failed_list(cell, project) for cell in range(self._cells))
        found = []
        for lane in await self._outbox.lanes():
            receiver = parse_receiver(receiver_of_lane(lane))
            if receiver is not None and receiver.project == project:
                found.append(lane)
        return sorted(found)

    async def _paused_ms(self) -> dict[str, int]:
        """Return the receivers that get no requests now, with the ms until the next one."""
        survey = await self._states.survey()
        paused = dict(survey.held_ms)
        for report in survey.breakers.values():
            for receiver, probe_ms in report.items():
                paused[receiver] = max(probe_ms, paused.get(receiver, 0))
        return paused

    async def _rows(
        self,
        key: str,
        state: Literal["failed", "waiting"],
        start: int,
        most: int,
        *,
        paused_ms: int | None,
    ) -> list[ReplyRow]:
        pairs = await self._store.call(
            "ZRANGE", key, start, start + most - 1, "WITHSCORES", repeatable=True
        )
        ids = [each.decode() for each in pairs[::2]]
        if not ids:
            return []
        parts = ("", ".attempts", ".cause", ".lane")
        fields = [f"{each}{part}" for each in ids for part in parts]
        items = item_hash(int(key[: key.index("}")].rpartition(".")[2]))
        told = await self._store.call("HMGET", items, *fields, repeatable=True)
        words = [(each or b"").decode() for each in told]
        return [
            ReplyRow(
                transaction_id=transaction_of(each),
                receiver=receiver_of_lane(words[i + 3] if state == "failed" else key),
                event=words[i].partition(" ")[0],
                state=state,
                attempts=int(words[i + 1] or 0),
                cause=words[i + 2],
                at_ms=int(float(at)),
                paused_ms=paused_ms,
            )
            for i, each, at in zip(range(0, len(words), 4), ids, pairs[1::2], strict=True)
        ]

    async def _failed(
        self, project: str, transaction_id: str
    ) -> AsyncIterator[list[tuple[str, str]]]:
        """Lane and item of what was given up, in parts; what fails meanwhile is not for this."""
        if transaction_id:
            cell = names.cell_of(transaction_id)
            ids = [item_of(transaction_id, kind) for kind in KINDS]
            yield await self._lanes_of(cell, project, ids)
            return
        for cell in range(self._cells):
            key = failed_list(cell, project)
            found = await self._store.call("ZRANGE", key, 0, -1, repeatable=True)
            for first in range(0, len(found), _AT_ONCE):
                part = [each.decode() for each in found[first : first + _AT_ONCE]]
                yield await self._lanes_of(cell, project, part)

    async def _lanes_of(self, cell: int, project: str, ids: Sequence[str]) -> list[tuple[str, str]]:
        fields = [f"{each}.lane" for each in ids]
        scores, lanes = await asyncio.gather(
            self._store.call("ZMSCORE", failed_list(cell, project), *ids, repeatable=True),
            self._store.call("HMGET", item_hash(cell), *fields, repeatable=True),
        )
        return [
            (lane.decode(), each)
            for each, score, lane in zip(ids, scores, lanes, strict=True)
            if score is not None and lane is not None
        ]

    async def _found(self, project: str, transaction_id: str) -> Found:
        """A transaction that is the project's own."""
        (found,) = await self._signals.get(project, [transaction_id])
        if found is None:
            raise _unknown(transaction_id)
        return found


def _unknown(transaction_id: str) -> TransactionUnknownError:
    return TransactionUnknownError(f"There is no transaction {transaction_id}.")


def _ms(text: bytes | None) -> int | None:
    return int(text) if text else None


def _place(cursor: str) -> tuple[str, int]:
    """The list that a page goes on in, and how many of it were shown."""
    if not cursor:
        return "", 0
    start, _, key = cursor.partition("~")
    if not (start.isascii() and start.isdecimal() and len(start) < 10 and key):
        raise InvalidInputError("The cursor is not one that we gave out.", field="cursor")
    return key, int(start)
