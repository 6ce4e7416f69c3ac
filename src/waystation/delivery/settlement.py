"""Settlements: what is written down of an attempt, and who hears of it before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from waystation.delivery.items import Claimed
from waystation.delivery.records import AttemptRecord, encode_record
from waystation.delivery.request import Outcome
from waystation.delivery.schedule import Decision, Verdict
from waystation.errors import BusyError, StoreError
from waystation.runtime.logging import logger

_log = logger("delivery")

#: Whoever settles a failure tells of it within this; else the next deliverer does.
TELL_MS = 30_000


class Conclusion(NamedTuple):
    """What came of an attempt."""

    claimed: Claimed
    decision: Decision
    outcome: Outcome


#: Hears what came of attempts: lane, and those that are settled together.
Concluded = Callable[[str, Sequence[Conclusion]], Awaitable[None]]


class Settlement(NamedTuple):
    """One item of a call of the script."""

    #: Id, token, verdict, ms to wait, cause, record.
    words: tuple[str, str, str, int, str, bytes | str]
    conclusion: Conclusion | None = None
    hears: Concluded | None = None

    @property
    def record(self) -> bytes:
        """What is kept of the attempt; empty if there was none."""
        record = self.words[5]
        return record if isinstance(record, bytes) else b""


def settlement_of(
    claimed: Claimed,
    decision: Decision,
    outcome: Outcome,
    *,
    at_ms: int,
    hears: Concluded | None = None,
) -> Settlement:
    """What is written down of an attempt that was made."""
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
    words = (claimed.id, claimed.token, verdict, wait_ms, decision.cause, encode_record(record))
    conclusion = None if hears is None else Conclusion(claimed, decision, outcome)
    return Settlement(words, conclusion, hears)


def release_of(claimed: Claimed, wait_seconds: float) -> Settlement:
    """What is written down of one that was not made: nothing, but when it is due again."""
    wait_ms = round(wait_seconds * 1000)
    return Settlement((claimed.id, claimed.token, "release", wait_ms, "", ""))


async def tell(lane: str, settled: Sequence[Settlement]) -> None:
    """Tells who wants to hear of it. A defect there keeps nothing from being settled."""
    hears = next((each.hears for each in settled if each.hears is not None), None)
    if hears is None:
        return
    try:
        await hears(lane, [each.conclusion for each in settled if each.conclusion is not None])
    except (BusyError, StoreError):
        raise
    except Exception as error:
        _log.error("concluding attempts broke", error=error, lane=lane)
