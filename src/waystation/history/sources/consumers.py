"""Retention holds of named Spark streams: the option `consumer` of the source `waystation`.

A hold is firm, as that of a subscription: retention keeps entries from the hold on beyond the age
limit of the topic, and at the byte limit the policy of the topic decides. The hold stays in the
store after the query has ended, because the query may continue from its checkpoint. So the
operator must release the hold of a consumer that no query uses again.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from waystation.history.decoders.partitions import topic_place
from waystation.history.log_reader import LogReader
from waystation.history.offsets import OffsetRange, parse_key
from waystation.logs import keys as log_keys

_PREFIX = "spark:"


class ConsumerHold(msgspec.Struct, frozen=True):
    """Hold of a consumer on a partition of a topic."""

    consumer: str
    log: str
    partition: int
    #: First offset that the consumer needs.
    offset: int
    #: Entries from that offset on.
    behind: int


def hold(logs: LogReader, consumer: str, offsets: Mapping[str, int]) -> None:
    """Keep entries of partitions from these offsets on. Skip partitions that do not exist."""
    for key, offset in offsets.items():
        logs.hold(OffsetRange(*parse_key(key), offset, offset), _PREFIX + consumer)


def commit(logs: LogReader, consumer: str, offsets: Mapping[str, int]) -> None:
    """Move the holds of partitions to these offsets; release a sealed partition at its end."""
    states = logs.states(parse_key(key) for key in offsets)
    for (log, partition), state in states.items():
        offset = offsets[f"{log}/{partition}"]
        here = OffsetRange(log, partition, offset, offset)
        if state.sealed is not None and offset >= state.end:
            logs.release(here, _PREFIX + consumer)
        else:
            logs.hold(here, _PREFIX + consumer)


def consumer_holds(logs: LogReader) -> list[ConsumerHold]:
    """Return the holds of all consumers, by consumer, log and partition."""
    states = logs.states(_topic_partitions(logs))
    replies = logs.replies(("HGETALL", log_keys.holds(*each)) for each in states)
    found: list[ConsumerHold] = []
    for ((log, partition), state), reply in zip(states.items(), replies, strict=True):
        for name, value in zip(reply[::2], reply[1::2], strict=True):
            if name.startswith(_PREFIX.encode()):
                offset = int(value.split()[0])
                consumer = name.decode().removeprefix(_PREFIX)
                behind = state.end - max(offset, state.first)
                found.append(ConsumerHold(consumer, log, partition, offset, behind))
    return sorted(found, key=lambda each: (each.consumer, each.log, each.partition))


def release_consumer(logs: LogReader, consumer: str) -> int:
    """Release all holds of a consumer. Return the number of partitions that it held."""
    return sum(
        logs.release(OffsetRange(*each, 0, 0), _PREFIX + consumer)
        for each in _topic_partitions(logs)
    )


def _topic_partitions(logs: LogReader) -> list[tuple[str, int]]:
    return [
        (log, partition)
        for log, partitions in logs.names().items()
        if topic_place(log, 0) is not None
        for partition in range(partitions)
    ]
