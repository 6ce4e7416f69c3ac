"""The journal of a transaction, within its state: bounded, however often a step is tried."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from waystation.transactions.record import Attempt, LogLine, StepJournal, TransactionState

#: Of each step, its newest.
ATTEMPTS_KEPT = 20
LINES_KEPT = 100
LINE_BYTES_MAX = 500
NOTE_BYTES_MAX = 500
TRACE_BYTES_MAX = 8192


def note_attempt(
    state: TransactionState,
    place: str,
    step_type: str,
    attempt: Attempt,
    logs: Sequence[LogLine] = (),
) -> Attempt:
    """Adds an attempt and what it logged; returns it as it was kept, with its number."""
    journal = journal_of(state, place)
    if journal is None:
        journal = StepJournal(place, step_type)
        state.journal.append(journal)
    journal.attempts += 1
    kept = Attempt(
        journal.attempts,
        attempt.epoch,
        attempt.outcome,
        attempt.begun_ms,
        attempt.ended_ms,
        attempt.node,
        cut(attempt.note, NOTE_BYTES_MAX),
        cut(attempt.trace, TRACE_BYTES_MAX),
    )
    journal.last.append(kept)
    del journal.last[:-ATTEMPTS_KEPT]
    journal.logs += [
        msgspec.structs.replace(line, text=cut(line.text, LINE_BYTES_MAX))
        for line in logs[-LINES_KEPT:]
    ]
    del journal.logs[:-LINES_KEPT]
    return kept


def journal_of(state: TransactionState, place: str) -> StepJournal | None:
    """What is known of a step; None before its first attempt."""
    # From the end: the step that runs is nearly always the last.
    for journal in reversed(state.journal):
        if journal.place == place:
            return journal
    return None


def cut(text: str, bytes_max: int) -> str:
    """The beginning of a text that fits, and a sign that there was more."""
    if text.isascii() and len(text) <= bytes_max:
        return text  # Nearly always.
    packed = text.encode(errors="replace")
    if len(packed) <= bytes_max:
        return packed.decode()
    return packed[: bytes_max - 3].decode(errors="ignore") + "…"
