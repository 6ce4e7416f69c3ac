"""Log of operations on the archive and the lake, such as pruning the archive.

An operation concerns the data of many subscription shards or transaction cells, so it is not an
event of one of them.

An entry is the msgpack array `[1, project, kind, subject, detail]`. The ingest reads the log. A
process records an operation before it runs it. Therefore a recorded operation may have run
completely, partly or not at all.
"""

from __future__ import annotations

from typing import Any

import msgspec

from waystation.errors import LogNotFoundError
from waystation.logs.protocol import Logs, Retention

LOG = "operations"
#: Version of the entry layout.
FORMAT = 1
_RETENTION = Retention(max_bytes=8 * 1_048_576, policy="drop_and_count")


class OperationRecord(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """One operation, as the log of operations stores it."""

    format: int = FORMAT
    #: Project of the operation; empty: all projects.
    project: str = ""
    #: `prune`: delete archived transactions that ended before `detail["before_ms"]`.
    #: `forget`: blank the payloads of a person in the lake. `detail` has the user of the operating
    #: system, the kind of the name that was given, and the numbers of rows.
    kind: str
    #: Id of the object, such as a transaction; empty: `detail` identifies the object.
    subject: str = ""
    detail: dict[str, Any] = {}


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(OperationRecord).decode


class OperationLog:
    """Appends operations to their log."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs

    async def write(self, record: OperationRecord) -> None:
        """Append an operation. If an error is raised, the log may contain it nevertheless."""
        try:
            await self._logs.append(LOG, 0, [_encode(record)])
        except LogNotFoundError:
            # Create the log on its first use, because most installations never need it.
            await self._logs.create(LOG, 1, _RETENTION)
            await self._logs.append(LOG, 0, [_encode(record)])


def unpack(payload: bytes) -> OperationRecord:
    """Decode an entry. Raise ValueError if it is invalid or was written by a later release."""
    try:
        record = _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not an entry of the log of operations: {error}") from error
    if record.format != FORMAT:
        raise ValueError(
            f"entry of format {record.format}; this release reads only format {FORMAT}"
        )
    return record
