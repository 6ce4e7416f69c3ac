"""The retry set of the plugin: what could not be delivered, and when it is tried again.

A member is the message itself, as the plugin writes it, with an id of its own: two messages that
are alike are two members. Its score is when it is due, in seconds since the epoch by the store's
clock. After its last attempt a message is a dead letter, in the same slot, to be looked at and put
back. A deliverer of the plugin may run beside ours: it sees what is due and not claimed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from waystation.acapy.outbound import TAKE_BYTES_MAX, check_list_name
from waystation.store.client import Store
from waystation.store.keys import key_beside
from waystation.store.scripts import script

_TAKE = script(__package__, "retry_take")
_SETTLE = script(__package__, "retry_settle")
_BURY = script(__package__, "retry_bury")
_DEAD = script(__package__, "retry_dead")
_REDRIVE = script(__package__, "retry_redrive")

#: Dead letters that are kept.
DEAD_MAX = 10_000
#: Dead letters of one call.
BATCH_MAX = 100
_CAUSE_BYTES_MAX = 1000


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was given up."""

    id: str
    at_ms: int
    attempts: int
    cause: str
    #: Whether it can be put back; one that cannot be read cannot.
    readable: bool
    message: bytes


class RetrySet:
    """The set, and the dead letters beside it."""

    def __init__(self, store: Store, name: str, *, dead_max: int = DEAD_MAX) -> None:
        self.name = check_list_name(name)
        self._store = store
        self._dead_max = dead_max
        self._dead, self._failed = key_beside(name, "dead"), key_beside(name, "failed")

    def __repr__(self) -> str:
        return f"<RetrySet {self.name}>"

    async def take(self, most: int, lease_ms: int) -> list[bytes]:
        """Members that are due; nobody else gets them while the claim holds."""
        return list(await self._store.run(_TAKE, [self.name], (most, lease_ms, TAKE_BYTES_MAX)))

    async def put(self, member: bytes, *, wait_ms: int, was: bytes = b"") -> None:
        """A message is due in `wait_ms`, in the place of the member that it was."""
        await self._store.run(_SETTLE, [self.name], (was, member, wait_ms))

    async def done(self, was: bytes) -> None:
        """A message was delivered."""
        await self._store.run(_SETTLE, [self.name], (was, b"", 0))

    async def bury(
        self,
        letter_id: str,
        member: bytes,
        *,
        cause: str,
        attempts: int,
        readable: bool,
        was: bytes,
    ) -> int:
        """Makes a dead letter; how many older ones were dropped to make room."""
        text = cause.encode("utf-8", "replace")[:_CAUSE_BYTES_MAX]
        letter = b"%d %d %d %b%b" % (attempts, len(text), readable, text, member)
        keys = [self.name, self._dead, self._failed]
        reply = await self._store.run(_BURY, keys, (was, letter_id, letter, self._dead_max))
        return int(reply[1])

    # -- Dead letters ------------------------------------------------------------------------

    async def dead(
        self, *, after: DeadLetter | None = None, most: int = BATCH_MAX
    ) -> list[DeadLetter]:
        """Return the oldest dead letters; those after the last one of the page before.

        A letter that is redriven or purged between two pages makes no page skip another one.
        """
        last = (after.at_ms, after.id) if after is not None else (0, "")
        reply = await self._store.run(
            _DEAD, [self._dead, self._failed], (*last, min(most, BATCH_MAX))
        )
        return [_letter(reply[i].decode(), reply[i + 1]) for i in range(0, len(reply), 2)]

    async def dead_count(self) -> int:
        """How many there are."""
        return int(await self._store.call("ZCARD", self._failed, repeatable=True))

    async def redrive(self, ids: Sequence[str] = (), *, most: int = BATCH_MAX) -> int:
        """Puts dead letters back, due at once, with all their attempts; those named, or the oldest.

        What cannot be read stays. How many were put back.
        """
        return await self._revive("redrive", ids, most)

    async def purge(self, ids: Sequence[str] = (), *, most: int = BATCH_MAX) -> int:
        """Forgets dead letters; how many."""
        return await self._revive("purge", ids, most)

    async def _revive(self, verb: str, ids: Sequence[str], most: int) -> int:
        assert len(ids) <= BATCH_MAX, "more ids than one call may have"
        keys = [self.name, self._dead, self._failed]
        return int(await self._store.run(_REDRIVE, keys, (verb, min(most, BATCH_MAX), *ids)))


def _letter(letter_id: str, found: bytes) -> DeadLetter:
    at_ms, attempts, length, readable, rest = found.split(b" ", 4)
    return DeadLetter(
        id=letter_id,
        at_ms=int(at_ms),
        attempts=int(attempts),
        cause=rest[: int(length)].decode("utf-8", "replace"),
        readable=readable == b"1",
        message=rest[int(length) :],
    )
