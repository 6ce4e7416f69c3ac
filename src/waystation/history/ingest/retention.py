"""Watermarks: what the store is told of how far history has come, so that it keeps the rest.

They are copies. The last entry that was read is held, too, to be compared with: a store that went
back is known by it. A log that takes nothing more and was read to its end is let go.
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

#: The hold of history on a log. What begins with `~` yields to a log's limit of bytes.
SOFT, HARD = YIELDING_READER, FIRM_READER


def register(logs: LogReader, reader: str, states: Mapping[str, LogState]) -> None:
    """Register history as a reader: record logs keep from now on what it has not read.

    Before that, they keep little. New ones are registered by the node that creates them. Topics
    keep what their own retention says, and are held once something was read of them.
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


class Watermarks:
    """Sets watermarks, each once."""

    def __init__(self, full: WhenFull) -> None:
        self._reader = history_reader_name(full)
        self._other = SOFT if full == "refuse" else HARD
        #: Partition -> how far it was read, and whether it was let go.
        self._set: dict[str, tuple[int, bool]] = {}

    @property
    def reader(self) -> str:
        """The reader under which history holds logs."""
        return self._reader

    def clear(self) -> None:
        """Forgets what was set: it is another store."""
        self._set.clear()

    def is_at(self, key: str, offset: int, state: LogState) -> bool:
        """Whether this process has said that a partition was read up to here.

        One that was sealed since has to be told again: it is let go.
        """
        return self._set.get(key) == (offset, _is_over(state, offset))

    def set(
        self, logs: LogReader, offsets: Mapping[str, int], states: Mapping[str, LogState]
    ) -> None:
        """Says how far partitions were read."""
        for key, offset in offsets.items():
            if self.is_at(key, offset, states[key]):
                continue
            span = OffsetRange(*parse_key(key), max(0, offset - 1), offset)
            over = _is_over(states[key], offset)
            if over:
                logs.release(span, self._reader)
            else:
                logs.hold(span, self._reader)
            if key not in self._set:
                # Of a time when history held in the other way.
                logs.release(span, self._other)
            self._set[key] = offset, over


def _is_over(state: LogState, offset: int) -> bool:
    """Whether nothing will ever come behind an offset."""
    return state.sealed is not None and offset == state.end


def release_all(logs: LogReader) -> int:
    """Lets go of all logs, so that none waits for history; how many it had held."""
    logs.stamp_history("")
    return sum(
        logs.release(OffsetRange(log, partition, 0, 0), reader)
        for log, partitions in logs.names().items()
        for partition in range(partitions)
        for reader in (SOFT, HARD)
    )
