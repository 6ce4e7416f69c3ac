"""Retention holds of history: the offsets from which the store keeps entries for it.

A hold is a copy of the committed offset in the lake. It is set one entry before that offset, so
that the last ingested entry stays in the store: after a restart of the store, recovery compares the
entry. A sealed log that was read to its end is released.
"""

from __future__ import annotations

from collections.abc import Mapping

from waystation.config import WhenFull
from waystation.history.decoders.partitions import topic_place
from waystation.history.log_reader import LogReader
from waystation.history.offsets import OffsetRange, parse_key
from waystation.logs import keys as log_names
from waystation.logs.protocol import LogState
from waystation.logs.records import FIRM_READER, YIELDING_READER, history_reader_name

#: Names under which history holds logs. A log over its limit of bytes drops entries that only a
#: soft hold keeps, and refuses new entries for a hard one.
SOFT, HARD = YIELDING_READER, FIRM_READER


def register(logs: LogReader, reader: str, states: Mapping[str, LogState]) -> None:
    """Register history as a reader of record logs, which drop their entries early without one.

    The node that creates a record log later registers history for it. Topics keep entries by their
    own retention, and are held when something was read from them.
    """
    logs.stamp_history(reader)
    records = [
        (*parse_key(key), state.first)
        for key, state in states.items()
        if topic_place(*parse_key(key)) is None and state.sealed is None
    ]
    held = logs.replies(
        ("HEXISTS", log_names.holds(log, partition), reader) for log, partition, _ in records
    )
    for (log, partition, first), is_held in zip(records, held, strict=True):
        if not is_held:
            logs.hold(OffsetRange(log, partition, first, first), reader)


class RetentionHolds:
    """Holds that this process has set, so that it sets none twice."""

    def __init__(self, full: WhenFull) -> None:
        self._reader = history_reader_name(full)
        self._other = SOFT if full == "refuse" else HARD
        #: Partition → offset that was read, and whether the partition was released.
        self._held: dict[str, tuple[int, bool]] = {}

    @property
    def reader(self) -> str:
        """Name under which history holds logs."""
        return self._reader

    def clear(self) -> None:
        """Set all holds again, because the store may have lost them."""
        self._held.clear()

    def unread(self, states: Mapping[str, LogState]) -> dict[str, LogState]:
        """Return the partitions that this process has not read to their end.

        A partition that was sealed since counts as not read, because it has to be released.
        """
        return {
            key: state
            for key, state in states.items()
            if self._held.get(key) != (state.end, state.sealed is not None)
        }

    def hold(
        self, logs: LogReader, offsets: Mapping[str, int], states: Mapping[str, LogState]
    ) -> None:
        """Hold partitions at the offsets up to which they were read."""
        for key, offset in offsets.items():
            is_over = states[key].sealed is not None and offset == states[key].end
            if self._held.get(key) == (offset, is_over):
                continue
            last = OffsetRange(*parse_key(key), max(0, offset - 1), offset)
            if is_over:
                logs.release(last, self._reader)
            else:
                logs.hold(last, self._reader)
            if key not in self._held:
                # A process with another setting may have held it under the other name.
                logs.release(last, self._other)
            self._held[key] = offset, is_over


def release_all(logs: LogReader) -> int:
    """Release all logs, so that none waits for history. Return how many were held."""
    logs.stamp_history("")
    return sum(
        logs.release(OffsetRange(log, partition, 0, 0), reader)
        for log, partitions in logs.names().items()
        for partition in range(partitions)
        for reader in (SOFT, HARD)
    )
