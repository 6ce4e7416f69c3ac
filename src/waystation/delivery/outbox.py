"""The outbox: a durable list of things to send, in lanes.

A lane is one endpoint's list in one slot of the store: a key prefix whose last part is the name of
the endpoint, such as `c.{orders}.out.crm`. Whoever has something to send adds it inside its own
script (includes `_check_gates` and `_add`), so that it is there exactly if the script ran. It
goes to the inbox of the lane, a stream, which is all that it costs the one who adds. Deliverers
take from there what they have slots for, claim it, and settle it. An item is never taken out
before its attempt is settled: to claim is to put off, and a claim that nobody settles or renews
runs out.

Deliverers find lanes by a register, which lies in another slot. So each lane has a gate in its own:
nothing is added through a closed one. Whoever finds it closed registers the lane, then opens it;
whoever takes an empty lane off the register closes it first. See docs/internals/delivery.md for why
neither can overtake the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from waystation.delivery.attempt_log import AttemptLog
from waystation.delivery.items import Claim, Claimed, Item, Settled, decode_item, encode_item
from waystation.delivery.layout import GATED, REGISTER, Layout
from waystation.delivery.records import AttemptRecord, FailedItem, decode_record
from waystation.delivery.request import Outcome
from waystation.delivery.schedule import Decision
from waystation.delivery.settlement import (
    TELL_MS,
    Concluded,
    Settlement,
    release_of,
    settlement_of,
    tell,
)
from waystation.errors import BusyError, InvalidInputError, StoreError
from waystation.runtime.batcher import RequestBatcher
from waystation.store.client import Store
from waystation.store.connection import Reply
from waystation.store.scripts import script

__all__ = [
    "Claim",
    "Claimed",
    "Item",
    "Outbox",
    "Settled",
    "decode_item",
    "encode_item",
    "endpoint_of",
]

_ADD = script(__package__, "add")
_CLAIM = script(__package__, "claim")
_CLOSE = script(__package__, "close")
_DISCARD = script(__package__, "discard")
_OPEN = script(__package__, "open")
_REDRIVE = script(__package__, "redrive")
_REGISTER = script(__package__, "register")
_RENEW = script(__package__, "renew")
_RETIRE = script(__package__, "retire")
_SETTLE = script(__package__, "settle")
_UNLIST = script(__package__, "unlist")

_STAMP = "waystation.{outbox}.stamp"
#: How long after the last one records of attempts are kept.
RECORDS_SECONDS = 7 * 86_400
#: Failed items that a lane keeps; beyond them the oldest goes, and is counted.
FAILED_MAX = 10_000
#: Items that may wait in a lane before their first attempt, and as many again for another one; what
#: comes then is not added, and is counted.
WAITING_MAX = 100_000
#: What one claim brings at most, give or take one item.
_CLAIM_BYTES_MAX = 4 * 1_048_576
#: A closed gate is remembered this long: far longer than anybody takes from looking to opening.
_CLOSED_SECONDS = 86_400
_OPEN_TRIES_MAX = 10
_RESERVED = (".attempts", ".cause", ".token")


_SETTLED = tuple(Settled)


def endpoint_of(lane: str) -> str:
    """The name of the endpoint that a lane leads to."""
    return lane.rpartition(".")[2]


class Outbox:
    """The verbs of the outbox."""

    def __init__(
        self, store: Store, layout: Layout = GATED, *, attempts: AttemptLog | None = None
    ) -> None:
        self.store = self._store = store
        self.layout = self._layout = layout
        self._attempts = attempts
        self._settlements = RequestBatcher(self._settle_all)

    # -- The register and the gates ----------------------------------------------------------

    async def register(self, lane: str) -> str:
        """Makes deliverers look at a lane; returns the stamp of the registration."""
        stamp: bytes = await self._store.run(_REGISTER, [REGISTER, _STAMP], [lane])
        return stamp.decode()

    async def lanes(self, *, since_ms: int = 0) -> dict[str, str]:
        """Lanes registered since then, with the stamps of their registrations."""
        lanes: dict[str, str] = {}
        asked = [
            ("ZRANGE", register, since_ms, "+inf", "BYSCORE", "WITHSCORES")
            for register in self._layout.registers
        ]
        for pairs in await self._store.pipeline(asked, repeatable=True):
            if isinstance(pairs, StoreError):
                raise pairs
            lanes |= {pairs[i].decode(): pairs[i + 1].decode() for i in range(0, len(pairs), 2)}
        return lanes

    async def registration(self, lane: str) -> str:
        """The stamp of a lane's registration; empty when it is not registered."""
        register = self._layout.register_of(lane)
        stamp = await self._store.call("ZSCORE", register, lane, repeatable=True)
        return (stamp or b"").decode()

    async def retire(self, lane: str, registered: str) -> bool:
        """Takes a lane with nothing in it off the register, unless it was registered again.

        `registered` must have been read before: who registers after that keeps the lane.
        """
        keys = self._layout.keys(lane)
        if not self._layout.gated:
            own = [self._layout.register_of(lane), keys.due, keys.untold]
            return bool(await self._store.run(_UNLIST, own, [lane]))
        used = [keys.due, keys.failed, keys.untold, keys.gate, keys.inbox]
        closed = await self._store.run(_CLOSE, used, [_CLOSED_SECONDS])
        return bool(closed and await self._store.run(_RETIRE, [REGISTER], [lane, registered]))

    async def through_gates(
        self, lanes: Sequence[str], run: Callable[[], Awaitable[Reply]]
    ) -> Reply:
        """Runs a script that adds to lanes, opening those that it finds closed."""
        for _ in range(_OPEN_TRIES_MAX):
            reply = await run()
            if not reply or reply[0] != b"closed":
                return reply
            for lane, said in zip(lanes, reply[1:], strict=True):
                if said != b"open":
                    # In this order: a lane must never be open without being registered.
                    await self.register(lane)
                    await self._store.run(_OPEN, [f"{lane}.gate"], [said])
        raise BusyError("A lane of the outbox was closed again and again.")

    # -- Items -------------------------------------------------------------------------------

    async def add(
        self, lane: str, item_id: str, item: Item, *, wait_ms: int = 0, most: int = WAITING_MAX
    ) -> bool:
        """Adds one item; false when its id is there already, or the lane is full."""
        if not item_id.isprintable() or not item_id.isascii() or item_id.endswith(_RESERVED):
            raise InvalidInputError("An id is printable ASCII without a reserved end.", field="id")
        assert self._layout.gated, "into other lanes, scripts put with outbox_put"
        keys = self._layout.keys(lane)
        arguments: list[str | bytes | int] = [lane, item_id, encode_item(item), wait_ms, most]
        reply = await self.through_gates(
            [lane], lambda: self._store.run(_ADD, [keys.due, keys.items, keys.gate], arguments)
        )
        return bool(reply[0] == b"added")

    async def claim(
        self, lane: str, *, most: int, claim_ms: int, token: str, fresh_first: bool = False
    ) -> Claim:
        """Claim up to `most` due items; 0 only counts them.

        `fresh_first`: claim an item that has not been attempted yet, if there is one, because it
        tells more about the endpoint than one that has failed.
        """
        keys = self._layout.keys(lane)
        used = [keys.due, keys.items, keys.untold]
        if self._layout.gated:
            used += [keys.gate, keys.failed, keys.inbox]
        limits = [TELL_MS, _CLAIM_BYTES_MAX, WAITING_MAX, int(fresh_first)]
        reply = await self._store.run(_CLAIM, used, [most, claim_ms, token, *limits])
        first = 5 + int(reply[4])
        return Claim(
            items=[
                Claimed(reply[i].decode(), reply[i + 1], int(reply[i + 2]) + 1, token)
                for i in range(first, len(reply), 3)
            ],
            next_ms=int(reply[0]),
            waiting=int(reply[1]),
            failed=int(reply[2]),
            dropped=int(reply[3]),
            untold=[each.decode() for each in reply[5:first]],
        )

    async def renew(self, lane: str, claims: Iterable[Claimed], *, claim_ms: int) -> list[str]:
        """Keeps claims from running out; returns ids of those that are another's by now."""
        pairs = [part for each in claims for part in (each.id, each.token)]
        keys = self._layout.keys(lane)
        lost = await self._store.run(_RENEW, [keys.due, keys.items], [claim_ms, *pairs])
        return [each.decode() for each in lost]

    def settle(
        self,
        lane: str,
        claimed: Claimed,
        decision: Decision,
        outcome: Outcome,
        *,
        at_ms: int,
        hears: Concluded | None = None,
    ) -> asyncio.Future[Settled]:
        """Writes down what came of an attempt; what is settled at once shares a call.

        Whoever wants to hear of it has heard before it is written; one `hears` for a lane.
        """
        settlement = settlement_of(claimed, decision, outcome, at_ms=at_ms, hears=hears)
        return self._settlements.ask(lane, settlement)

    def release(
        self, lane: str, claimed: Claimed, *, wait_seconds: float = 0.0
    ) -> Awaitable[Settled]:
        """Gives a claim back; the attempt does not count, because there was none."""
        return self._settlements.ask(lane, release_of(claimed, wait_seconds))

    async def told(self, lane: str, item_id: str) -> None:
        """Somebody has been told that this one failed."""
        untold = self._layout.keys(lane).untold
        await self._store.call("ZREM", untold, item_id, repeatable=True)

    async def redrive(self, lane: str, *, item_id: str = "", most: int = 1000) -> int:
        """Puts failed items back, oldest first; returns how many."""
        keys, gated = self._layout.keys(lane), self._layout.gated
        assert item_id or not self._layout.shares_failed, "others may have failed from other lanes"
        door = keys.gate if gated else self._layout.register_of(lane)
        used = [keys.due, keys.items, keys.failed, keys.untold, door]
        reply = await self.through_gates(
            [lane], lambda: self._store.run(_REDRIVE, used, [lane, most, item_id, int(gated)])
        )
        return int(reply[1])

    async def discard(
        self, lane: str, *, waiting: bool = False, item_id: str = "", most: int = 1000
    ) -> int:
        """Forgets failed, or waiting, items for good; returns how many."""
        which = "waiting" if waiting else "failed"
        keys = self._layout.keys(lane)
        assert item_id or waiting or not self._layout.shares_failed, "as in redrive"
        used = [keys.due, keys.items, keys.failed, keys.untold]
        if keys.inbox:
            used.append(keys.inbox)
        return int(await self._store.run(_DISCARD, used, [which, most, item_id]))

    async def _settle_all(self, lane: str, settled: list[Settlement]) -> list[Settled]:
        noted = lane if self._layout.shares_failed else ""
        arguments: list[str | bytes | int] = [
            self._layout.records_max,
            RECORDS_SECONDS,
            FAILED_MAX,
            noted,
        ]
        for each in settled:
            arguments += each.words
        await tell(lane, settled)
        if self._attempts is not None:
            await self._attempts.write(lane, [each.record for each in settled if each.record])
        replies = await self._store.run(_SETTLE, self._layout.keys(lane)[:6], arguments)
        return [_SETTLED[each] for each in replies]

    # -- Looking -----------------------------------------------------------------------------

    async def waiting(self, lane: str) -> int:
        """How many items wait or are under way."""
        if self._layout.gated:
            return (await self.counts([lane]))[0][0]
        return int(await self._store.call("ZCARD", self._layout.keys(lane).due, repeatable=True))

    async def counts(self, lanes: Sequence[str]) -> list[tuple[int, int, int]]:
        """Of each lane: how many wait, how many failed, how many found no room."""
        assert self._layout.gated, "other lanes do not have all of these"
        replies = await self._store.pipeline(
            [
                command
                for keys in map(self._layout.keys, lanes)
                for command in (
                    ("ZCARD", keys.due),
                    ("XLEN", keys.inbox),
                    ("ZCARD", keys.failed),
                    ("HGET", keys.gate, "dropped"),
                )
            ],
            repeatable=True,
        )
        numbers: list[int] = []
        for reply in replies:
            if isinstance(reply, StoreError):
                raise reply
            numbers.append(int(reply or 0))
        rows = zip(numbers[::4], numbers[1::4], numbers[2::4], numbers[3::4], strict=True)
        return [(due + inbox, failed, dropped) for due, inbox, failed, dropped in rows]

    async def records(self, lane: str, *, item_id: str = "") -> list[AttemptRecord]:
        """The attempts that are kept, of one item or of all, oldest first."""
        entries = await self._store.call(
            "XRANGE", self._layout.keys(lane).attempts, "-", "+", repeatable=True
        )
        found = [decode_record(fields[1]) for _, fields in entries]
        return [each for each in found if not item_id or each.id == item_id]

    async def failed(self, lane: str, *, start: int = 0, most: int = 100) -> list[FailedItem]:
        """Failed items with their causes, oldest first."""
        pairs = await self._store.call(
            "ZRANGE", self._layout.keys(lane).failed, start, start + most - 1, "WITHSCORES",
            repeatable=True,
        )  # fmt: skip
        ids = [each.decode() for each in pairs[::2]]
        return await self._failures(lane, ids, [int(each) for each in pairs[1::2]])

    async def failure(self, lane: str, item_id: str) -> FailedItem | None:
        """One failed item; None when it is none any more."""
        failed = self._layout.keys(lane).failed
        at_ms = await self._store.call("ZSCORE", failed, item_id, repeatable=True)
        return None if at_ms is None else (await self._failures(lane, [item_id], [int(at_ms)]))[0]

    async def _failures(self, lane: str, ids: list[str], times: list[int]) -> list[FailedItem]:
        if not ids:
            return []
        fields = [f"{each}{end}" for each in ids for end in (".cause", ".attempts")]
        items = self._layout.keys(lane).items
        told = await self._store.call("HMGET", items, *fields, repeatable=True)
        return [
            FailedItem(
                id=each, cause=(cause or b"").decode(), attempts=int(count or 0), failed_ms=at_ms
            )
            for each, cause, count, at_ms in zip(ids, told[::2], told[1::2], times, strict=True)
        ]
