"""The trail of a message through a shard's record log: how it came to its end, and when."""

from __future__ import annotations

from typing import Literal

import msgspec

from waystation.errors import LogDamagedError, LogError
from waystation.logs.protocol import Logs
from waystation.subscriptions.log_entry import Fact, unpack, unpack_attempt, unpack_operation
from waystation.subscriptions.names import Place
from waystation.subscriptions.positions import Position, parse_member

#: Entries that one question looks at, and how many of them are read together.
_LOOK_MAX = 20_000
_READ = 500

#: `before`: the subscription began behind it. `trimmed`: the topic let go of it. `unknown`: the
#: record log does not say it any more. `damaged`: it was missing from its log.
How = Literal[
    "delivered", "skipped", "purged", "dropped", "before", "trimmed", "damaged", "unknown"
]
_ENDS: dict[str, How] = {
    "attempt": "delivered",
    "skipped": "skipped",
    "purged": "purged",
    "dropped": "dropped",
}


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a message was settled."""

    how: How
    at_ms: int = 0
    #: Which attempt delivered it; 0 where none did.
    attempt: int = 0
    node: str = ""
    operation: str = ""


class Trails:
    """Follows messages."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs

    async def ending(self, place: Place, position: Position, since_ms: int) -> Ending:
        """How a message was settled that was produced at that time."""
        at, ending = position.member, Ending(how="unknown")
        log, shard, looked = place.record_log, place.shard, 0
        try:
            offset = await self._logs.offset_at(log, shard, since_ms)
            while looked < _LOOK_MAX:
                try:
                    batch = await self._logs.read(log, shard, offset, limit=_READ)
                except LogDamagedError as hole:
                    # What the missing records said is unknown; later ones may still tell the end.
                    looked, offset = looked + 1, hole.end
                    continue
                if not batch:
                    break
                for ms, payload in zip(batch.times_ms, batch.payloads, strict=True):
                    for fact in unpack(payload).facts:
                        at, ending = _follow(fact, ms, position, at, ending)
                looked, offset = looked + len(batch), batch.next_offset
        except (LogError, ValueError):
            pass  # It was deleted or trimmed under us, or is of a newer release.
        return ending


def _follow(fact: Fact, ms: int, position: Position, at: str, ending: Ending) -> tuple[str, Ending]:
    """Where the message is after a fact, and how it has ended if it has."""
    if fact.kind in ("start", "trimmed", "passed", "damaged", "reset"):
        was, now = parse_member(fact.was), parse_member(fact.now)
        if was.at != position.at:
            return at, ending
        if fact.kind == "start" and position.offset < was.number:
            return at, Ending(how="before", at_ms=ms)
        if fact.kind in ("trimmed", "passed") and was.number <= position.offset < now.number:
            return at, Ending(how="trimmed", at_ms=ms)
        if fact.kind == "damaged" and was.number <= position.offset < now.number:
            return at, Ending(how="damaged", at_ms=ms)
        if fact.kind == "reset" and position.offset >= now.number:
            return position.member, Ending(how="unknown")
        return at, ending
    if fact.was != at:
        return at, ending
    if fact.now != "-" or fact.kind not in _ENDS:
        return fact.now, ending
    node = operation = ""
    if fact.detail is not None and fact.kind == "attempt":
        node = unpack_attempt(fact.detail).node
    elif fact.detail is not None:
        operation = unpack_operation(fact.detail).operation
    how = _ENDS[fact.kind]
    return "-", Ending(how=how, at_ms=ms, attempt=fact.attempt, node=node, operation=operation)
