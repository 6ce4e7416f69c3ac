"""Scopes: from where on a subscription reads each partition of its topic, by its own record.

A subscription says where it begins, and where each reset takes it. Storage topics that were added
to its topic later are read from their beginning, and nothing says so. An incarnation that is over,
by a reset or because the subscription was deleted, has no end on record: it ends with the last
message that it has taken.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from pyspark.sql import Row
from pyspark.sql import functions as f

from waystation.history.audit.live_state import Live
from waystation.history.audit.snapshot import AuditTables
from waystation.history.decoders.partitions import topic_place
from waystation.history.lake.lifecycle import ranges
from waystation.history.lake.schema import DELIVERIES, MESSAGES
from waystation.topics.router import shard_of_partition

#: Of a scope that has no end.
_ENDLESS = (1 << 63) - 1

#: Project, subscription, incarnation.
_Incarnation = tuple[str, str, int]
#: Storage topic and partition.
_At = tuple[int, int]


class Scope(msgspec.Struct, frozen=True):
    """A partition in an incarnation of a subscription: that begins anew with each reset."""

    project: str
    subscription: str
    #: Empty where the record does not name it.
    topic: str
    storage: int
    partition: int
    incarnation: int
    #: Whether it is to deliver all of it: it is the newest one here, and was not deleted.
    lasts: bool
    #: Whether all that it has is gone by now.
    deleted: bool
    #: The first offset that it reads, and the first behind all that it has to do with.
    begin: int
    upto: int
    #: Where the partition is read now.
    last_generation: int
    last_shard: int

    @property
    def whose(self) -> tuple[str, str]:
        """Project and subscription."""
        return self.project, self.subscription

    @property
    def key(self) -> tuple[str, str, int, int, int]:
        """Which partition in which incarnation."""
        return *self.whose, self.incarnation, self.storage, self.partition


def read_scopes(tables: AuditTables, live: Live | None) -> list[Scope]:
    """All of them. There are few: one for each partition, start and reset."""
    rows = ranges(tables.frame(DELIVERIES)).where("kind in ('start', 'reset')").collect()
    by_incarnation: dict[_Incarnation, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.generation):
        key = (row.project, row.subscription, row.incarnation)
        by_incarnation.setdefault(key, []).append(row)
    # A name that was used again has another topic in another generation.
    topics = {(*_whose(row), row.generation): row.topic for row in rows if row.topic}
    scopes: list[Scope] = []
    for key, some in by_incarnation.items():
        topic = topics.get((*_whose(some[-1]), some[-1].generation), "")
        scopes += _scopes_of(tables, live, key, topic, some)
    return _ended(tables, live, scopes)


def _scopes_of(
    tables: AuditTables, live: Live | None, key: _Incarnation, topic: str, rows: list[Row]
) -> Iterable[Scope]:
    project, subscription, incarnation = key
    generation = rows[-1].generation
    begins: dict[_At, int] = {}
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
        yield Scope(
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
    """The shard of a partition that none has said to read; only who asks the store needs it."""
    if live is None:
        return 0
    partitions = live.count(log)
    shards = live.count(f"s.{row.project}.{row.subscription}.{row.generation}")
    return shard_of_partition(partition, partitions, shards) if partitions and shards else 0


def _ended(tables: AuditTables, live: Live | None, scopes: list[Scope]) -> list[Scope]:
    """The same, with the ends of those that are over."""
    newest: dict[tuple[object, ...], int] = {}
    for each in scopes:
        place = (*each.whose, each.topic, each.storage, each.partition)
        newest[place] = max(newest.get(place, 0), each.incarnation)
    generations = {(*each.whose, each.last_generation) for each in scopes}
    gone = {each for each in generations if live is not None and live.has_left(*each)}
    marked: list[Scope] = []
    for each in scopes:
        place = (*each.whose, each.topic, each.storage, each.partition)
        deleted = (*each.whose, each.last_generation) in gone
        lasts = newest[place] == each.incarnation and not deleted
        marked.append(msgspec.structs.replace(each, lasts=lasts, deleted=deleted))
    if all(each.lasts for each in marked):
        return marked
    taken = _taken(tables)
    return [
        each if each.lasts else msgspec.structs.replace(each, upto=taken.get(each.key, 0))
        for each in marked
    ]


def _taken(tables: AuditTables) -> dict[tuple[str, str, int, int, int], int]:
    """Behind the last message that each incarnation has taken from each partition."""
    rows = (
        tables.frame(DELIVERIES)
        .where("from_place like 'm%' and (to_place = '-' or to_place rlike '^[rd]')")
        .groupBy("project", "subscription", "incarnation", "storage", "partition")
        .agg(f.max("offset").alias("last"))
    )
    return {tuple(row)[:5]: row.last + 1 for row in rows.collect()}


def _whose(row: Row) -> tuple[str, str]:
    return row.project, row.subscription
