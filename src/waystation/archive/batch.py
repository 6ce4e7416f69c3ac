"""Writes a batch of states so that one bad state does not stop the others.

A batch that is refused for what it holds is halved until the bad one is alone: with one among a
thousand that is some twenty writes. A database that is away ends it at once; what was written by
then stays, and may be written again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from waystation.archive.protocol import ArchivedState, Refused, Upserted


class PoisonedError(Exception):
    """A batch was refused, as a whole, because of a state in it; the text is for people."""


#: Writes all or nothing; how many applied. PoisonedError if one of them can never be written.
Write = Callable[[Sequence[ArchivedState]], Awaitable[int]]


async def write_batch(states: Sequence[ArchivedState], write: Write) -> Upserted:
    """Writes states, of each id the highest version."""
    highest: dict[str, ArchivedState] = {}
    refused: list[Refused] = []
    for state in states:
        if _has_nul(state):
            refused.append(Refused(state.id, "a text of it has a NUL"))
        elif (other := highest.get(state.id)) is None or other.version < state.version:
            highest[state.id] = state
    applied = 0
    parts = [list(highest.values())] if highest else []
    while parts:
        part = parts.pop()
        try:
            applied += await write(part)
        except PoisonedError as error:
            if len(part) == 1:
                refused.append(Refused(part[0].id, str(error)))
            else:
                middle = len(part) // 2
                parts += part[middle:], part[:middle]
    return Upserted(applied, refused)


def _has_nul(state: ArchivedState) -> bool:
    """SQLite would keep it and find it badly, PostgreSQL would not; so neither does."""
    texts = state.id, state.owner, state.external_id, state.pipeline, state.status, state.step
    return "\0" in "".join(texts)
