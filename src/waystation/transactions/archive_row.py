"""The row that the archive keeps of a transaction: its whole hash, and what it can be found by.

A packed state that cannot be read, of a newer release, say, is kept all the same: the store has to
let go of it some day. It can be found by all but its step, its start and its deadline then.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from waystation.archive import ArchivedState, split_hash

_WORDS = 16
_ENDED = "complete"


class _Frame(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The front of a frame, as `record.Frame` has it."""

    pipeline: msgspec.Raw
    version: msgspec.Raw
    group: msgspec.Raw
    step: int
    input: msgspec.Raw
    retries: int = 0
    parent: str = ""


class _Front(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The front of a packed state, as `record.TransactionState` has it; no more is looked into."""

    format: int
    type: msgspec.Raw
    external_id: msgspec.Raw
    metadata: msgspec.Raw
    data: msgspec.Raw
    started_ms: int
    deadline_ms: int
    cause: msgspec.Raw
    traceparent: msgspec.Raw
    frames: list[_Frame]

    @property
    def place(self) -> str:
        """The step that runs, or would."""
        if not self.frames:
            return ""
        top = self.frames[-1]
        return f"{top.parent}.{top.step + 1}" if top.parent else str(top.step + 1)


_read_front = msgspec.msgpack.Decoder(_Front).decode


def row_of(transaction_id: str, fields: Mapping[bytes, bytes]) -> ArchivedState:
    """The row of a hash; ValueError, for people, where that is no state."""
    # What is no text is passed on, for the archive to refuse it like any other that it cannot keep.
    words = fields.get(b"head", b"").decode(errors="surrogateescape").split(" ")
    if len(words) != _WORDS or "" in words or not _are_numbers(words):
        raise ValueError("its head cannot be read")
    since_ms, version, wake_ms = int(words[0]), int(words[2]), int(words[11])
    state = words[1]
    complete = state == _ENDED
    packed, others = split_hash(fields)
    step, started_ms, deadline_ms = _facts(packed)
    return ArchivedState(
        id=transaction_id,
        owner=words[9],
        external_id=fields.get(b"externalId", b"").decode(errors="surrogateescape"),
        pipeline=words[8],
        status=words[10] if complete else state,
        step=step,
        version=version,
        wake_ms=wake_ms,
        deadline_ms=deadline_ms,
        started_ms=started_ms,
        updated_ms=since_ms,
        completed_ms=since_ms if complete else 0,
        packed=packed,
        fields=others,
    )


def _facts(packed: bytes) -> tuple[str, int, int]:
    """Place of the step, start and deadline, as far as they can be read."""
    try:
        front = _read_front(packed)
    except (ValueError, RecursionError):
        return "", 0, 0
    return front.place, front.started_ms, front.deadline_ms


def _are_numbers(words: list[str]) -> bool:
    """Whether those words of a head are that have to be: time, version, epoch, commits, wake-up."""
    numbers = "".join((words[0], *words[2:5], words[11]))
    return numbers.isascii() and numbers.isdecimal()
