"""The outbox: a durable list of things to send, in lanes.

A lane is one endpoint's list in one slot of the store: a key prefix such as `c.{orders}.out.crm`.
Whoever has something to send adds it inside its own script (include "outbox_add"), so that it is
there exactly if the script ran. Deliverers claim what is due and settle it. An item is never taken
out before its attempt is settled: to claim is to put off, and a claim that nobody settles runs out.

Lanes are found by a register, a sorted set of lane → time. A lane is registered before anything is
added to it and retired only when it has been empty for longer than an add can take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from waystation.delivery.request import Outcome
from waystation.delivery.schedule import Decision, Verdict
from waystation.store import Store, script

_ADD = script(__package__, "add")
_CLAIM = script(__package__, "claim")
_SETTLE = script(__package__, "settle")
_REDRIVE = script(__package__, "redrive")
_RETIRE = script(__package__, "retire")

REGISTER = "waystation.outbox.lanes"
#: Records of attempts that a lane keeps.
RECORDS_MAX = 1000
#: A registration is good for this long; an add follows its registration within seconds.
REGISTRATION_MS = 60_000


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to send. The id names the message, not the attempt."""

    endpoint: str
    url: str
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    created_ms: int = 0


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of an attempt."""

    id: str
    attempt: int
    verdict: str
    status: int
    failure: str
    seconds: float
    at_ms: int
    excerpt: bytes


@dataclass(frozen=True)
class Claimed:
    """An item that is ours for a while."""

    id: str
    item: Item
    #: 1 for the first.
    attempt: int
    token: str


encode_item = msgspec.msgpack.Encoder().encode
_decode_item = msgspec.msgpack.Decoder(Item).decode
_decode_record = msgspec.msgpack.Decoder(AttemptRecord).decode


class Outbox:
    """The verbs of the outbox."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def register(self, lane: str) -> None:
        """Makes deliverers look at a lane. Before anything is added to it."""
        now = await self._store.call("TIME", repeatable=True)
        stamp = int(now[0]) * 1000 + int(now[1]) // 1000
        await self._store.call("ZADD", REGISTER, "GT", stamp, lane, repeatable=True)

    async def lanes(self) -> dict[str, str]:
        """All lanes with their registration times, as the store writes them."""
        pairs = await self._store.call("ZRANGE", REGISTER, 0, -1, "WITHSCORES", repeatable=True)
        return {pairs[i].decode(): pairs[i + 1].decode() for i in range(0, len(pairs), 2)}

    async def retire(self, lane: str, registered: str) -> bool:
        """Takes an empty lane off the register, unless it was registered again."""
        return bool(await self._store.run(_RETIRE, [REGISTER], [lane, registered]))

    async def add(self, lane: str, item_id: str, item: Item, *, wait_ms: int = 0) -> bool:
        """Adds one item; false when its id is there already."""
        await self.register(lane)
        added = await self._store.run(
            _ADD, [f"{lane}.items"], [lane, item_id, encode_item(item), wait_ms]
        )
        return bool(added)

    async def claim(
        self, lane: str, *, most: int, claim_ms: int, token: str
    ) -> tuple[list[Claimed], int]:
        """Claims what is due; also tells in how many ms the next item is, or -1 for none."""
        reply = await self._store.run(
            _CLAIM, [f"{lane}.due", f"{lane}.items"], [most, claim_ms, token]
        )
        claimed = [
            Claimed(reply[i].decode(), _decode_item(reply[i + 1]), int(reply[i + 2]) + 1, token)
            for i in range(1, len(reply), 3)
        ]
        return claimed, int(reply[0])

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
        verdict = "failed" if decision.verdict is Verdict.DISABLE else decision.verdict.value
        wait_ms = round(decision.wait_seconds * 1000)
        packed = msgspec.msgpack.encode(record)
        return await self._settle(lane, claimed, [verdict, wait_ms, decision.cause, packed])

    async def release(self, lane: str, claimed: Claimed) -> bool:
        """Gives a claim back at once; the attempt does not count, because there was none."""
        return await self._settle(lane, claimed, ["release", 0, "", ""])

    async def records(self, lane: str) -> list[AttemptRecord]:
        """The attempts that are kept, oldest first."""
        entries = await self._store.call("XRANGE", f"{lane}.attempts", "-", "+", repeatable=True)
        return [_decode_record(fields[1]) for _, fields in entries]

    async def failed(self, lane: str, *, most: int = 100) -> list[tuple[str, str]]:
        """Failed items with their causes, oldest first."""
        ids = await self._store.call("ZRANGE", f"{lane}.failed", 0, most - 1, repeatable=True)
        if not ids:
            return []
        fields = [f"{each.decode()}.cause" for each in ids]
        causes = await self._store.call("HMGET", f"{lane}.items", *fields, repeatable=True)
        return [(i.decode(), (c or b"").decode()) for i, c in zip(ids, causes, strict=True)]

    async def redrive(self, lane: str, *, most: int = 1000) -> int:
        """Puts failed items back, oldest first; returns how many."""
        await self.register(lane)
        return int(await self._store.run(_REDRIVE, _keys(lane)[:3], [most, lane]))

    async def waiting(self, lane: str) -> int:
        """How many items wait or are under way."""
        return int(await self._store.call("ZCARD", f"{lane}.due", repeatable=True))

    async def _settle(
        self, lane: str, claimed: Claimed, how: Sequence[str | bytes | int]
    ) -> bool:
        arguments = [claimed.id, claimed.token, *how, RECORDS_MAX]
        return bool(await self._store.run(_SETTLE, _keys(lane), arguments))


def _keys(lane: str) -> list[str]:
    return [f"{lane}.due", f"{lane}.items", f"{lane}.failed", f"{lane}.attempts"]
