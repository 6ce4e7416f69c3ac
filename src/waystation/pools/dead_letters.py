"""Dead letters of a pool: messages whose attempts are used up. Listed, sent again, deleted."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from waystation.errors import InvalidInputError
from waystation.pools.names import Place
from waystation.pools.refusals import check
from waystation.pools.terms import Terms
from waystation.store.client import Store
from waystation.store.connection import Reply
from waystation.store.scripts import Script, script

_PAGE = script(__package__, "dead_page")
_REDRIVE = script(__package__, "redrive")
_PURGE = script(__package__, "purge")

#: Of one call: about 3 ms of the store.
BATCH_MAX = 100
#: Characters of a cursor. Times and numbers have 16 digits at most.
_CURSOR_MAX = 33


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that nobody could settle."""

    number: int
    key: str
    #: Why, as its last worker said.
    cause: str
    tries: int
    crashes: int
    enqueued_ms: int
    failed_ms: int
    packed: bytes


class DeadLetterPage(msgspec.Struct, frozen=True):
    """Some of them, the oldest first."""

    items: list[DeadLetter]
    #: Where the next page begins; empty: this is the last one.
    cursor: str


class DeadLetters:
    """Runs the scripts of dead letters."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def page(
        self, place: Place, terms: Terms, *, cursor: str = "", limit: int = BATCH_MAX
    ) -> DeadLetterPage:
        """Those that failed after what the cursor stands for."""
        limit = min(limit, BATCH_MAX)
        ms, number = _parse(cursor)
        arguments = (terms.argument, limit, ms, number)
        reply = check(await self._store.run(_PAGE, [place.head], arguments), place)
        items = [_letter(reply[i : i + 8]) for i in range(1, len(reply), 8)]
        last = items[-1] if items else None
        return DeadLetterPage(items, f"{last.failed_ms}-{last.number}" if last else "")

    async def redrive(self, place: Place, terms: Terms, numbers: Sequence[int] = ()) -> int:
        """Puts these to the ends of their lists, or all that are there now; how many went."""
        return await self._for_all(_REDRIVE, place, terms, numbers)

    async def purge(self, place: Place, terms: Terms, numbers: Sequence[int] = ()) -> int:
        """Deletes these, or all that are there now; how many went."""
        return await self._for_all(_PURGE, place, terms, numbers)

    async def _for_all(
        self, verb: Script, place: Place, terms: Terms, numbers: Sequence[int]
    ) -> int:
        """In steps; whoever dies in between, or does it again, goes on with what is left."""
        if len(numbers) > BATCH_MAX:
            raise InvalidInputError(f"Name {BATCH_MAX} at most, or none.", field="numbers")
        done, left, until = 0, 1, 0
        while left > 0:
            # What fails again meanwhile failed later than `until`: this comes to an end.
            arguments: list[str | bytes | int] = [terms.argument, BATCH_MAX, until, *numbers]
            reply = check(await self._store.run(verb, [place.head], arguments), place)
            some, left, until = (int(each) for each in reply)
            done += some
        return done


def _parse(cursor: str) -> tuple[int, int]:
    if not cursor:
        return 0, 0
    ms, _, number = cursor.partition("-")
    digits = ms + number
    is_number = ms and number and digits.isascii() and digits.isdecimal()
    if not is_number or len(cursor) > _CURSOR_MAX:
        raise InvalidInputError("That is no cursor of dead letters.", field="cursor")
    return int(ms), int(number)


def _letter(words: list[Reply]) -> DeadLetter:
    number, failed_ms, enqueued_ms, tries, crashes, key, cause, packed = words
    return DeadLetter(
        number=int(number),
        key=key.decode(),
        cause=cause.decode(errors="replace"),
        tries=int(tries),
        crashes=int(crashes),
        enqueued_ms=int(enqueued_ms),
        failed_ms=int(failed_ms),
        packed=packed,
    )
