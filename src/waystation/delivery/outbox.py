"""The outbox: a durable list of things to send, in lanes.

A lane is one endpoint's list in one slot of the store: a key prefix whose last part is the name of
the endpoint, such as `c.{orders}.out.crm`. Whoever has something to send adds it inside its own
script (include "outbox_add"), so that it is there exactly if the script ran. It goes to the inbox
of the lane, a stream, which is all that it costs the one who adds. Deliverers take from there what
they have slots for, claim it, and settle it. An item is never taken out before its attempt is
settled: to claim is to put off, and a claim that nobody settles or renews runs out.

Deliverers find lanes by a register, which lies in another slot. So each lane has a gate in its own:
nothing is added through a closed one. Whoever finds it closed registers the lane, then opens it;
whoever takes an empty lane off the register closes it first. See docs/internals/delivery.md for why
neither can overtake the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from waystation.delivery.records import AttemptRecord, FailedItem, decode_record
from waystation.delivery.request import Outcome
from waystation.delivery.schedule import Decision, Verdict
from waystation.errors import BusyError, InvalidInputError, StoreError
from waystation.store import Store, script
from waystation.store.connection import Reply

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

REGISTER = "waystation.{outbox}.lanes"
_STAMP = "waystation.{outbox}.stamp"
#: Records of attempts that a lane keeps, and for how long after the last.
RECORDS_MAX = 1000
RECORDS_SECONDS = 7 * 86_400
#: Failed items that a lane keeps; beyond them the oldest goes, and is counted.
FAILED_MAX = 10_000
#: Items that may wait in a lane before their first attempt, and as many again for another one; what
#: comes then is not added, and is counted.
WAITING_MAX = 100_000
#: Whoever settles a failure tells of it within this; else the next deliverer does.
TELL_MS = 30_000
#: What one claim brings at most, give or take one item.
_CLAIM_BYTES_MAX = 4 * 1_048_576
#: A closed gate is remembered this long: far longer than anybody takes from looking to opening.
_CLOSED_SECONDS = 86_400
_OPEN_TRIES_MAX = 10
_RESERVED = (".attempts", ".cause", ".token")


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to send. Where to is the endpoint's affair, unless it leaves that to the item."""

    url: str = ""
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


@dataclass(frozen=True)
class Claimed:
    """An item that is ours for a while."""

    id: str
    #: As it was added; its endpoint can read it.
    packed: bytes
    #: 1 for the first.
    attempt: int
    token: str


@dataclass(frozen=True)
class Claim:
    """What one look at a lane brought."""

    items: list[Claimed]
    #: Until something is due in the lane; -1: nothing waits.
    next_ms: int
    waiting: int
    failed: int
    #: Items that found no room, over the life of the lane.
    dropped: int
    #: Failures that somebody has to be told of, by us.
    untold: list[str]


encode_item = msgspec.msgpack.Encoder().encode
_decode_item = msgspec.msgpack.Decoder(Item).decode


def decode_item(packed: bytes) -> Item | None:
    """What `Outbox.add` was given; None when it cannot be read."""
    try:
        return _decode_item(packed)
    except msgspec.MsgspecError:
        return None


def endpoint_of(lane: str) -> str:
    """The name of the endpoint that a lane leads to."""
    return lane.rpartition(".")[2]


class Outbox:
    """The verbs of the outbox."""

    def __init__(self, store: Store) -> None:
        self.store = self._store = store

    # -- The register and the gates ----------------------------------------------------------

    async def register(self, lane: str) -> str:
        """Makes deliverers look at a lane; returns the stamp of the registration."""
        stamp: bytes = await self._store.run(_REGISTER, [REGISTER, _STAMP], [lane])
        return stamp.decode()

    async def lanes(self, *, since_ms: int = 0) -> dict[str, str]:
        """Lanes registered since then, with the stamps of their registrations."""
        pairs = await self._store.call(
            "ZRANGE", REGISTER, since_ms, "+inf", "BYSCORE", "WITHSCORES", repeatable=True
        )
        return {pairs[i].decode(): pairs[i + 1].decode() for i in range(0, len(pairs), 2)}

    async def registration(self, lane: str) -> str:
        """The stamp of a lane's registration; empty when it is not registered."""
        stamp = await self._store.call("ZSCORE", REGISTER, lane, repeatable=True)
        return (stamp or b"").decode()

    async def retire(self, lane: str, registered: str) -> bool:
        """Takes a lane with nothing in it off the register, unless it was registered again.

        `registered` must have been read before: who registers after that keeps the lane.
        """
        keys = _keys(lane)
        used = [keys[0], *keys[2:5], keys[6]]
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
        keys = _keys(lane)
        arguments: list[str | bytes | int] = [lane, item_id, encode_item(item), wait_ms, most]
        reply = await self.through_gates(
            [lane], lambda: self._store.run(_ADD, [*keys[:2], keys[4]], arguments)
        )
        return bool(reply[0] == b"added")

    async def claim(self, lane: str, *, most: int, claim_ms: int, token: str) -> Claim:
        """Claims what is due, up to `most`; 0 only looks."""
        keys = _keys(lane)
        limits = [TELL_MS, _CLAIM_BYTES_MAX, WAITING_MAX]
        reply = await self._store.run(
            _CLAIM, [*keys[:5], keys[6]], [most, claim_ms, token, *limits]
        )
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
        lost = await self._store.run(_RENEW, _keys(lane)[:2], [claim_ms, *pairs])
        return [each.decode() for each in lost]

    async def settle(
        self, lane: str, claimed: Claimed, decision: Decision, outcome: Outcome, *, at_ms: int
    ) -> bool:
        """Writes down what came of an attempt; false when the claim was another's by then."""
        record = AttemptRecord(
            id=claimed.id,
            attempt=claimed.attempt,
            verdict=decision.verdict.value,
            status=outcome.status,
            failure=outcome.failure.value if outcome.failure else "",
            seconds=outcome.seconds,
            at_ms=at_ms,
            excerpt=outcome.excerpt,
        )
        # What made us disable its endpoint waits with the others until that is enabled again.
        kept = decision.verdict is Verdict.DISABLE
        verdict = "retry" if kept else decision.verdict.value
        failed = decision.verdict is Verdict.FAILED
        wait_ms = TELL_MS if failed else round(decision.wait_seconds * 1000)
        packed = msgspec.msgpack.encode(record)
        return await self._settle(lane, claimed, [verdict, wait_ms, decision.cause, packed])

    async def release(self, lane: str, claimed: Claimed) -> bool:
        """Gives a claim back at once; the attempt does not count, because there was none."""
        return await self._settle(lane, claimed, ["release", 0, "", ""])

    async def told(self, lane: str, item_id: str) -> None:
        """Somebody has been told that this one failed."""
        await self._store.call("ZREM", f"{lane}.untold", item_id, repeatable=True)

    async def redrive(self, lane: str, *, item_id: str = "", most: int = 1000) -> int:
        """Puts failed items back, oldest first; returns how many."""
        reply = await self.through_gates(
            [lane], lambda: self._store.run(_REDRIVE, _keys(lane)[:5], [lane, most, item_id])
        )
        return int(reply[1])

    async def discard(
        self, lane: str, *, waiting: bool = False, item_id: str = "", most: int = 1000
    ) -> int:
        """Forgets failed, or waiting, items for good; returns how many."""
        which = "waiting" if waiting else "failed"
        keys = _keys(lane)
        used = [*keys[:4], keys[6]]
        return int(await self._store.run(_DISCARD, used, [which, most, item_id]))

    async def _settle(self, lane: str, claimed: Claimed, how: Sequence[str | bytes | int]) -> bool:
        kept = [RECORDS_MAX, RECORDS_SECONDS, FAILED_MAX]
        arguments = [claimed.id, claimed.token, *how, *kept]
        return bool(await self._store.run(_SETTLE, _keys(lane)[:6], arguments))

    # -- Looking -----------------------------------------------------------------------------

    async def waiting(self, lane: str) -> int:
        """How many items wait or are under way."""
        return (await self.counts([lane]))[0][0]

    async def counts(self, lanes: Sequence[str]) -> list[tuple[int, int, int]]:
        """Of each lane: how many wait, how many failed, how many found no room."""
        replies = await self._store.pipeline(
            [
                command
                for lane in lanes
                for command in (
                    ("ZCARD", f"{lane}.due"),
                    ("XLEN", f"{lane}.in"),
                    ("ZCARD", f"{lane}.failed"),
                    ("HGET", f"{lane}.gate", "dropped"),
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
        entries = await self._store.call("XRANGE", f"{lane}.attempts", "-", "+", repeatable=True)
        found = [decode_record(fields[1]) for _, fields in entries]
        return [each for each in found if not item_id or each.id == item_id]

    async def failed(self, lane: str, *, start: int = 0, most: int = 100) -> list[FailedItem]:
        """Failed items with their causes, oldest first."""
        pairs = await self._store.call(
            "ZRANGE", f"{lane}.failed", start, start + most - 1, "WITHSCORES", repeatable=True
        )
        ids = [each.decode() for each in pairs[::2]]
        return await self._failures(lane, ids, [int(each) for each in pairs[1::2]])

    async def failure(self, lane: str, item_id: str) -> FailedItem | None:
        """One failed item; None when it is none any more."""
        at_ms = await self._store.call("ZSCORE", f"{lane}.failed", item_id, repeatable=True)
        return None if at_ms is None else (await self._failures(lane, [item_id], [int(at_ms)]))[0]

    async def _failures(self, lane: str, ids: list[str], times: list[int]) -> list[FailedItem]:
        if not ids:
            return []
        fields = [f"{each}{end}" for each in ids for end in (".cause", ".attempts")]
        told = await self._store.call("HMGET", f"{lane}.items", *fields, repeatable=True)
        return [
            FailedItem(
                id=each, cause=(cause or b"").decode(), attempts=int(count or 0), failed_ms=at_ms
            )
            for each, cause, count, at_ms in zip(ids, told[::2], told[1::2], times, strict=True)
        ]


def _keys(lane: str) -> list[str]:
    parts = ("due", "items", "failed", "untold", "gate", "attempts", "in")
    return [f"{lane}.{part}" for part in parts]
