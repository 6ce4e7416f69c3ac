"""Entries of a cell's record log: what one script call did, for history.

An entry is `[1, data set, [[facts, detail], …]]`. Facts are words that the script writes; the
detail is msgpack that its caller gave and nobody looked into. Offset and time are the entry's own.
A record log can be read by itself, so what a pipeline wants kept from history never gets into it.
"""

from __future__ import annotations

import msgspec

from waystation.messages.redaction import RedactionPolicy

#: The layout of an entry.
FORMAT = 1


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to one transaction."""

    kind: str
    id: str
    version: int
    epoch: int
    state: str
    #: Empty while it is alive.
    status: str
    cause: str
    #: msgpack; None where there is none.
    detail: bytes | None


class LogEntry(msgspec.Struct, frozen=True):
    """All facts of one script call."""

    dataset: str
    facts: list[Fact]


class StartedDetail(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """Detail of `started`."""

    type: str
    version: str
    external_id: str
    metadata: bytes | None
    data: bytes | None
    cause: str
    traceparent: str
    #: `<parent id> <round> <n>` of a child of a Parallel.
    parent: str = ""
    #: Whose it is; facts do not tell. Entries of before this was recorded have none.
    project: str = ""
    #: What of it was kept, as the pipeline says: `redacted`, `headers` or `none`; empty: all.
    recorded: str = ""

    def kept(self, recording: RedactionPolicy) -> StartedDetail:
        """What history keeps of it."""
        if recording.keeps_all:
            return self
        hidden = recording.record == "none"
        return msgspec.structs.replace(
            self,
            external_id="" if hidden else self.external_id,
            metadata=recording.keep_json(self.metadata),
            data=recording.keep_json(self.data),
            cause="" if hidden else self.cause,
            traceparent="" if hidden else self.traceparent,
            recorded=recording.label,
        )


class AttemptDetail(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One attempt since the last commit."""

    place: str
    step_type: str
    number: int
    outcome: str
    begun_ms: int
    ended_ms: int
    node: str
    note: str
    #: The newest offset of the log that the worker had seen when the step began.
    begun_after: int


class StepDetail(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """Detail of `step`, `slept`, `passed`, `fanned` and `finished`."""

    attempts: list[AttemptDetail]
    #: With `finished`.
    output: bytes | None = None
    #: With `slept`: the wait that was asked for, the switch, and the packed state.
    delay_ms: int | None = None
    switch: str = ""
    state: bytes | None = None
    #: As that of `StartedDetail`.
    recorded: str = ""
    #: With `finished`: why the transaction did not succeed. Entries of older releases have none.
    cause: str = ""

    def kept(self, recording: RedactionPolicy) -> StepDetail:
        """What history keeps of it."""
        if recording.keeps_all:
            return self
        if recording.record == "none":
            return StepDetail(attempts=[], recorded=recording.label)
        return msgspec.structs.replace(
            self,
            output=recording.keep_json(self.output),
            state=recording.keep_opaque(self.state),
            recorded=recording.label,
        )


_Entry = tuple[int, str, list[tuple[str, msgspec.Raw]]]
_decode = msgspec.msgpack.Decoder(_Entry).decode
_NONE = b"\xc0"


def unpack(payload: bytes) -> LogEntry:
    """Reads an entry; ValueError for one that is none, or of a newer release."""
    try:
        format_, dataset, rows = _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not an entry of a record log: {error}") from error
    if format_ != FORMAT:
        raise ValueError(f"an entry of format {format_}, which this release cannot read")
    return LogEntry(dataset, [_fact(words, bytes(detail)) for words, detail in rows])


def _fact(words: str, detail: bytes) -> Fact:
    kind, transaction_id, version, epoch, state, status, *cause = words.split(" ", 6)
    return Fact(
        kind=kind,
        id=transaction_id,
        version=int(version),
        epoch=int(epoch),
        state=state,
        status="" if status == "-" else status,
        cause="".join(cause),
        detail=None if detail == _NONE else detail,
    )
