"""The names of a log's keys; what they hold is in the catalogue of all keys, `store/keys.py`."""

from __future__ import annotations

#: All logs by name.
REGISTER = "waystation.logs"


def entries(log: str, partition: int) -> str:
    """The stream of a partition."""
    return f"{{{log}.{partition}}}:log"


def head(log: str, partition: int) -> str:
    """What is known of a partition; scripts make this name from that of the stream."""
    return f"{{{log}.{partition}}}:log:head"


def holds(log: str, partition: int) -> str:
    """What readers of a partition still need."""
    return f"{{{log}.{partition}}}:log:holds"


def more(log: str, partition: int) -> str:
    """Where an append is told to who waits for it; scripts make this name from the stream's."""
    return f"{{{log}.{partition}}}:log:more"


def all_of(log: str, partition: int) -> tuple[str, str, str]:
    """What scripts need to append to a partition or to trim it: stream, head, holds."""
    stream = entries(log, partition)
    return stream, f"{stream}:head", f"{stream}:holds"


def message_id(log: str, partition: int, scoped_id: str) -> str:
    """Deduplication entry of a message; scripts make this name from that of the stream."""
    return f"{{{log}.{partition}}}:log:id:{scoped_id}"


def message_ids(log: str) -> str:
    """A pattern that all deduplication entries of a log match, and few others."""
    return f"{{{log}.*}}:log:id:*"
