"""Writes a batch of states so that one bad state does not stop the others.

A batch that is refused for what it holds is halved until the bad one is alone: with one among a
thousand that is some twenty writes. A database that is away ends it at once; what was written by
then stays, and may be written again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from waystation.archive.protocol import ArchivedState, Refused, Upserted

_NUMBER_MAX = 2**63 - 1


class PoisonedError(Exception):
    """A batch was refused, as a whole, because of a state in it; the text is for people."""


#: Writes all or nothing; how many applied. PoisonedError if one of them can never be written.
Write = Callable[[Sequence[ArchivedState]], Awaitable[int]]


async def write_batch(states: Sequence[ArchivedState], write: Write) -> Upserted:
    """Writes states, of each id the highest version."""
    # Looked at together: nearly always all are fit.
    reasons = [_unfit([each]) for each in states] if _unfit(states) else [""] * len(states)
    refused = [Refused(each.id, why) for each, why in zip(states, reasons, strict=True) if why]
    highest: dict[str, ArchivedState] = {}
    for state, why in zip(states, reasons, strict=True):
        other = highest.get(state.id)
        if not why and (other is None or other.version < state.version):
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


def is_fit(text: str) -> bool:
    """Whether a text can be kept at all: PostgreSQL has no NUL, and nobody half a character."""
    if "\0" in text:
        return False
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _unfit(states: Sequence[ArchivedState]) -> str:
    """What no database would keep; told here, so that all refuse the same."""
    texts, numbers = list[str](), [0]
    for each in states:
        texts += each.id, each.owner, each.external_id, each.pipeline, each.status, each.step
        numbers += each.version, each.wake_ms, each.deadline_ms, each.started_ms
        numbers += each.updated_ms, each.completed_ms
    if not is_fit("".join(texts)):
        return "a text of it has a NUL, or is no Unicode"
    if max(numbers) > _NUMBER_MAX or min(numbers) < -_NUMBER_MAX:
        return "a number of it is too large"
    return ""
