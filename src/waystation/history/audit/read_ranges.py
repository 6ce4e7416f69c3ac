"""Read ranges: the part of each partition of a topic that a subscription has to deliver.

The record log of a subscription has the offsets at which it started and to which each reset moved
it. It reads later storage topics of its topic from their beginning, without a record. Each start
and reset begins an incarnation. An incarnation that ended, because of a reset or because the
subscription was deleted, covers the messages up to the last one that it took.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from pyspark.sql import Row
from pyspark.sql import functions as f

from waystation.history.audit.live_state import Live
from waystation.history.audit.snapshot import AuditTables
from waystation.history.decoders.partitions import topic_place
from waystation.history.lake.lifecycle import ranges as recorded_ranges
from waystation.history.lake.schema import DELIVERIES, MESSAGES
from waystation.topics.router import shard_of_partition

#: End of a range without an end.
_ENDLESS = (1 << 63) - 1

#: Project, subscription, incarnation.
_Incarnation = tuple[str, str, int]
#: Numbers of a storage topic and of its partition.
_Partition = tuple[int, int]


class ReadRange(msgspec.Struct, frozen=True):
    """Part of a partition that an incarnation of a subscription reads."""

    project: str
    subscription: str
    #: Empty if the record log does not name the topic.
    topic: str
    storage: int
    partition: int
    incarnation: int
    #: Whether the incarnation still reads, because it is the newest one and was not deleted.
    lasts: bool
    #: Whether the subscription was deleted, with all its messages.
    deleted: bool
    #: The first offset of the range, and the first behind it.
    begin: int
    upto: int
    #: Generation and shard that read the partition now.
    last_generation: int
    last_shard: int

    @property
    def subscription_id(self) -> tuple[str, str]:
        """Project and name of the subscription."""
        return self.project, self.subscription

    @property
    def key(self) -> tuple[str, str, int, int, int]:
        """Incarnation and partition."""
        return *self.subscription_id, self.incarnation, self.storage, self.partition


def read_ranges(tables: AuditTables, live: Live | None) -> list[ReadRange]:
    """Return the ranges of all subscriptions: one for each partition and incarnation."""
    rows = recorded_ranges(tables.frame(DELIVERIES)).where("kind in ('start', 'reset')").collect()
    by_incarnation: dict[_Incarnation, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.generation):
        key = (row.project, row.subscription, row.incarnation)
        by_incarnation.setdefault(key, []).append(row)
    # Another subscription of the same name has another generation, and may have another topic.
    topics = {(*_subscription_id(row), row.generation): row.topic for row in rows if row.topic}
    ranges: list[ReadRange] = []
    for key, some in by_incarnation.items():
        topic = topics.get((*_subscription_id(some[-1]), some[-1].generation), "")
        ranges += _ranges_of_incarnation(tables, live, key, topic, some)
    return _with_ends(tables, live, ranges)


def _ranges_of_incarnation(
    tables: AuditTables, live: Live | None, key: _Incarnation, topic: str, rows: list[Row]
) -> Iterable[ReadRange]:
    project, subscription, incarnation = key
    generation = rows[-1].generation
    begins: dict[_Partition, int] = {}
    for row in rows:
        at = row.storage, row.partition
        begins[at] = min(begins.get(at, row.to), row.to)
    newest = max(storage for storage, _ in begins)
    for log, partition in tables.ends(MESSAGES) if topic else ():
        place = topic_place(log, partition)
        if place and (place.project, place.topic) == (project, topic) and place.storage > newest:
            begins[place.storage, place.partition] = 0
    known = {(row.storage, row.partition): row.shard for row in rows}
    for at, begin in begins.items():
        shard = known.get(at)
        if shard is None:
            shard = _shard(live, f"t.{project}.{topic}.{at[0]}", at[1], rows[-1])
        yield ReadRange(
            project,
            subscription,
            topic,
            *at,
            incarnation,
            lasts=True,
            deleted=False,
            begin=begin,
            upto=_ENDLESS,
            last_generation=generation,
            last_shard=shard,
        )


def _shard(live: Live | None, log: str, partition: int, row: Row) -> int:
    """Return the shard that reads a partition of a later storage topic.

    Only look-ups in the store need it.
    """
    if live is None:
        return 0
    partitions = live.partition_count(log)
    shards = live.partition_count(f"s.{row.project}.{row.subscription}.{row.generation}")
    return shard_of_partition(partition, partitions, shards) if partitions and shards else 0


def _with_ends(tables: AuditTables, live: Live | None, ranges: list[ReadRange]) -> list[ReadRange]:
    """Return the ranges, where those of ended incarnations end behind the last message taken."""
    newest: dict[tuple[object, ...], int] = {}
    for each in ranges:
        place = (*each.subscription_id, each.topic, each.storage, each.partition)
        newest[place] = max(newest.get(place, 0), each.incarnation)
    generations = {(*each.subscription_id, each.last_generation) for each in ranges}
    deleted_generations = {
        each for each in generations if live is not None and live.is_deleted(*each)
    }
    classified: list[ReadRange] = []
    for each in ranges:
        place = (*each.subscription_id, each.topic, each.storage, each.partition)
        deleted = (*each.subscription_id, each.last_generation) in deleted_generations
        lasts = newest[place] == each.incarnation and not deleted
        classified.append(msgspec.structs.replace(each, lasts=lasts, deleted=deleted))
    if all(each.lasts for each in classified):
        return classified
    taken = _taken(tables)
    return [
        each if each.lasts else msgspec.structs.replace(each, upto=taken.get(each.key, 0))
        for each in classified
    ]


def _taken(tables: AuditTables) -> dict[tuple[str, str, int, int, int], int]:
    """Return the offset behind the last message that each incarnation took, by partition."""
    rows = (
        tables.frame(DELIVERIES)
        .where("from_place like 'm%' and (to_place = '-' or to_place rlike '^[rd]')")
        .groupBy("project", "subscription", "incarnation", "storage", "partition")
        .agg(f.max("offset").alias("last"))
    )
    return {tuple(row)[:5]: row.last + 1 for row in rows.collect()}


def _subscription_id(row: Row) -> tuple[str, str]:
    return row.project, row.subscription
