"""The log of operations that belong to no shard and no cell, for history.

An entry is `[1, project, kind, subject, detail]`. It is written before the thing is done, so
nothing is done without being on record; what is on record may have been done in part, or not at
all.
"""

from __future__ import annotations

from typing import Any

import msgspec

from waystation.errors import LogNotFoundError
from waystation.logs.protocol import Logs, Retention

LOG = "operations"
#: The layout of an entry.
FORMAT = 1
_RETENTION = Retention(max_bytes=8 * 1_048_576, policy="drop_and_count")


class OperationRecord(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """Something that was done."""

    format: int = FORMAT
    #: Empty: it is about all of them.
    project: str = ""
    #: `prune`: the archive let go of what had ended before `before_ms` of the detail.
    kind: str
    #: What it was done to, such as the id of a transaction; empty where the detail says it.
    subject: str = ""
    detail: dict[str, Any] = {}


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(OperationRecord).decode


class OperationLog:
    """Writes operations down."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs

    async def write(self, record: OperationRecord) -> None:
        """Returns when it is in the log; raises if it may not be."""
        try:
            await self._logs.append(LOG, 0, [_encode(record)])
        except LogNotFoundError:
            # Most stations never need it, so it is made by whoever does first.
            await self._logs.create(LOG, 1, _RETENTION)
            await self._logs.append(LOG, 0, [_encode(record)])


def unpack(payload: bytes) -> OperationRecord:
    """Reads an entry; ValueError for one that is none, or of a newer release."""
    try:
        record = _decode(payload)
    except msgspec.DecodeError as error:
        raise ValueError(f"not an entry of the log of operations: {error}") from error
    if record.format != FORMAT:
        raise ValueError(f"an entry of format {record.format}, which this release cannot read")
    return record
