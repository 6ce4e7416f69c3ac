"""Store keys of a log. `docs/reference/keys.md` describes their content."""

from __future__ import annotations

#: Hash: log → number of partitions.
REGISTER = "waystation.logs"


def entries(log: str, partition: int) -> str:
    """Return the key of a partition's stream."""
    return f"{{{log}.{partition}}}:log"


def head(log: str, partition: int) -> str:
    """Return the key of a partition's head. Scripts build it from the stream's key."""
    return f"{{{log}.{partition}}}:log:head"


def holds(log: str, partition: int) -> str:
    """Return the key of a partition's retention holds. Scripts build it from the stream's key."""
    return f"{{{log}.{partition}}}:log:holds"


def more(log: str, partition: int) -> str:
    """Return the pub/sub topic that announces appends. Scripts build it from the stream's key."""
    return f"{{{log}.{partition}}}:log:more"


def all_of(log: str, partition: int) -> tuple[str, str, str]:
    """Return the keys of stream, head and holds, for scripts that append or trim."""
    stream = entries(log, partition)
    return stream, f"{stream}:head", f"{stream}:holds"


def message_id(log: str, partition: int, scoped_id: str) -> str:
    """Return the key of a message's deduplication entry. Scripts build it from the stream's key."""
    return f"{{{log}.{partition}}}:log:id:{scoped_id}"


def message_ids(log: str) -> str:
    """Return a SCAN pattern for the deduplication entries of a log.

    The pattern also matches entries of logs whose names start with the name of this log and a dot.
    """
    return f"{{{log}.*}}:log:id:*"
