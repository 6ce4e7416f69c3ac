"""The log of attempts: every request to an endpoint, for history.

An attempt is written down before it is settled, so none is settled without. What is made by several
lanes at once shares an entry: `[1, [[lane, record], …]]`. History never keeps a delivery waiting: a
log that takes nothing costs a count. When it is unknown whether an entry was written, it is written
again: then an attempt is there twice, with the same lane, id and time.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence

import msgspec

from waystation.delivery.records import AttemptRecord, decode_record
from waystation.errors import LogError, LogNotFoundError, StoreFullError
from waystation.logs.protocol import Logs, Retention
from waystation.runtime.batcher import RequestBatcher
from waystation.runtime.logging import logger
from waystation.telemetry import metrics

_log = logger("delivery")

LOG = "webhooks"
#: The layout of an entry.
FORMAT = 1
_PARTITIONS = 4
_RETENTION = Retention(max_bytes=32 * 1_048_576, max_age_ms=7 * 86_400_000, policy="drop_and_count")
#: Attempts that are known to be written: a settlement that failed brings them again.
_KNOWN_MAX = 10_000
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, list[tuple[str, bytes]]]).decode


class AttemptLog:
    """Writes attempts down, each once."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._appends = RequestBatcher(self._append)
        self._known: dict[tuple[str, bytes], None] = {}
        self._told = False

    async def open(self) -> None:
        """Makes the log usable, as often as it is called."""
        if not await self._logs.create(LOG, _PARTITIONS, _RETENTION):
            for partition in range(_PARTITIONS):
                await self._logs.set_retention(LOG, partition, _RETENTION)

    async def write(self, lane: str, records: Sequence[bytes]) -> None:
        """Writes down attempts of a lane. Raises only if the store is away."""
        partition = zlib.crc32(lane.encode()) % _PARTITIONS
        fresh = [(lane, record) for record in records if (lane, record) not in self._known]
        await asyncio.gather(*(self._appends.ask(partition, each) for each in fresh))

    async def _append(self, partition: int, attempts: list[tuple[str, bytes]]) -> list[bool]:
        entry = _encode((FORMAT, attempts))
        written = True
        try:
            try:
                await self._logs.append(LOG, partition, [entry])
            except LogNotFoundError:
                # The store was emptied, or restored from before there was one.
                await self.open()
                await self._logs.append(LOG, partition, [entry])
        except (LogError, StoreFullError) as error:
            written = False
            metrics.delivery_unrecorded.inc(len(attempts))
            if not self._told:
                self._told = True
                _log.warning("attempts are missing in history", error=error)
        self._known |= dict.fromkeys(attempts)
        while len(self._known) > _KNOWN_MAX:
            del self._known[next(iter(self._known))]
        return [written] * len(attempts)


async def open_attempt_log(logs: Logs) -> AttemptLog:
    """The log, ready to be written to."""
    attempts = AttemptLog(logs)
    await attempts.open()
    return attempts


def unpack(payload: bytes) -> list[tuple[str, AttemptRecord]]:
    """Lane and attempt, as an entry has them; ValueError for one that is none, or a newer one's."""
    try:
        format_, attempts = _decode(payload)
        if format_ != FORMAT:
            raise ValueError(f"an entry of format {format_}, which this release cannot read")
        return [(lane, decode_record(record)) for lane, record in attempts]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not an entry of the log of attempts: {error}") from error
