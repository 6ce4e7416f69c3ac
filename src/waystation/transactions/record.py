"""The packed state of a transaction: what its worker writes, and scripts never look into.

Arrays in msgpack, the format first: names would be a third of a small state. JSON of users is
bytes from door to door. Times are the store's.
"""

from __future__ import annotations

import msgspec

#: The layout of `TransactionState`; a reader that meets a larger number is too old.
FORMAT = 1


class Attempt(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One call of a step."""

    number: int
    epoch: int
    outcome: str
    begun_ms: int
    ended_ms: int
    node: str
    note: str = ""
    #: Where the code broke, if it did.
    trace: str = ""


class LogLine(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a step has logged."""

    ms: int
    level: str
    text: str


class StepJournal(msgspec.Struct, array_like=True):
    """What is known of a step: bounded, whatever it does. See `journal.py`."""

    place: str
    type: str
    #: So far, those that are not kept included.
    attempts: int = 0
    last: list[Attempt] = msgspec.field(default_factory=list)
    logs: list[LogLine] = msgspec.field(default_factory=list)


class Frame(msgspec.Struct, array_like=True):
    """A pipeline that is under way; a child pipeline is a frame above its parent's."""

    pipeline: str
    version: str
    group: str
    #: Of the step that is next, from 0.
    step: int
    input: bytes
    #: How often this step was called again.
    retries: int = 0
    #: Place of the step of the parent frame; empty at the bottom.
    parent: str = ""
    #: The switch that this step has waited for last; empty: none yet.
    waits: str = ""

    @property
    def place(self) -> str:
        """The path of the step, from 1: `2`, in a child `2.1`."""
        return f"{self.parent}.{self.step + 1}" if self.parent else str(self.step + 1)


class FanChild(msgspec.Struct, array_like=True, frozen=True):
    """A child of a Parallel, as it is to be created."""

    pipeline: str
    version: str
    group: str
    input: bytes


class Fan(msgspec.Struct, array_like=True):
    """A Parallel under way: child n of it is `children[n - 1]`."""

    round: int
    policy: str
    children: list[FanChild]


class Failing(msgspec.Struct, array_like=True):
    """What a transaction ends with, once what was done is compensated."""

    status: str
    output: bytes
    note: str
    #: Of the step that failed.
    place: str
    #: The frame that is being compensated, from 0; the one above it does it.
    at: int


class TransactionState(msgspec.Struct, array_like=True, kw_only=True):
    """The packed state."""

    format: int = FORMAT
    #: The pipeline that it was started with.
    type: str
    external_id: str = ""
    #: JSON as it came, less what has a place of its own.
    metadata: bytes = b"{}"
    #: JSON as it came.
    data: bytes = b"null"
    started_ms: int = 0
    #: 0: none.
    deadline_ms: int = 0
    #: Id of what led to this transaction.
    cause: str = ""
    traceparent: str = ""
    #: The bottom first; the last one runs.
    frames: list[Frame] = msgspec.field(default_factory=list)
    #: JSON, once there is one.
    output: bytes = b""
    note: str = ""
    fan: Fan | None = None
    journal: list[StepJournal] = msgspec.field(default_factory=list)
    #: How many pipelines of other transactions wait for this one: of a Parallel's parents.
    depth: int = 0
    failing: Failing | None = None
    #: Ms between the start and its `startAt`; 0: none was given; -1: not known, since a release
    #: before this field has written the state.
    delay_ms: int = -1


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(TransactionState).decode
_format = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


def encode(state: TransactionState) -> bytes:
    """The stored form."""
    return _encode(state)


def decode(packed: bytes) -> TransactionState:
    """The state in a stored form; ValueError for one that is none, or of a newer release."""
    try:
        state = _decode(packed)
    except msgspec.DecodeError as error:
        # A newer layout may not even decode: then its number is the better reason.
        _require_format(_format_of(packed))
        raise ValueError(f"not the state of a transaction: {error}") from error
    _require_format(state.format)
    return state


def _require_format(found: int) -> None:
    if found != FORMAT:
        raise ValueError(f"a state of format {found}, which this release cannot read")


def _format_of(packed: bytes) -> int:
    try:
        return int(msgspec.msgpack.decode(_format(packed)[0], type=int))
    except (IndexError, msgspec.DecodeError):
        return FORMAT
