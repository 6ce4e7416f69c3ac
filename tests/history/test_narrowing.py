"""Filters narrow what is read, and never below what a query asks for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from waystation.history.decoders.partitions import TopicPlace
from waystation.history.sources.filters import Narrowing

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC)
MOMENT_MS = 1_767_323_045_678


def narrowed(*conditions: Filter) -> Narrowing:
    narrowing = Narrowing()
    for condition in conditions:
        narrowing.add(condition)
    return narrowing


def kept(narrowing: Narrowing) -> set[tuple[str, int, int]]:
    places = [
        TopicPlace("default", topic, storage, partition)
        for topic in ("a", "b", "c")
        for storage in (0, 1)
        for partition in (0, 1, 2)
    ]
    return {(each.topic, each.storage, each.partition) for each in places if narrowing.keeps(each)}


def test_topics_storage_topics_and_partitions_are_chosen() -> None:
    assert kept(narrowed(EqualTo(("topic",), "a"), EqualTo(("storage",), 1))) == {
        ("a", 1, 0),
        ("a", 1, 1),
        ("a", 1, 2),
    }
    several = narrowed(In(("topic",), ("a", "b")), In(("topic",), ("b", "c")))
    assert {topic for topic, _, _ in kept(several)} == {"b"}
    some = narrowed(GreaterThan(("partition",), 0), LessThanOrEqual(("partition",), 1))
    assert {partition for _, _, partition in kept(some)} == {1}
    assert not kept(narrowed(EqualTo(("project",), "other")))


def test_offsets_move_both_ends_of_a_range() -> None:
    assert narrowed().offsets(10, 20) == (10, 20)
    assert narrowed(GreaterThanOrEqual(("offset",), 12)).offsets(10, 20) == (12, 20)
    assert narrowed(GreaterThan(("offset",), 12), LessThan(("offset",), 15)).offsets(10, 20) == (
        13,
        15,
    )
    assert narrowed(In(("offset",), (18, 11))).offsets(10, 20) == (11, 19)
    assert narrowed(EqualTo(("offset",), 12)).offsets(10, 20) == (12, 13)
    for none in (EqualTo(("offset",), 5), EqualTo(("offset",), 20), LessThan(("offset",), 10)):
        start, end = narrowed(none).offsets(10, 20)
        assert start == end


def test_times_become_whole_milliseconds_that_lose_no_row() -> None:
    # A message of that very millisecond is before the moment, so it is not asked for
    assert narrowed(GreaterThanOrEqual(("time",), MOMENT)).times_ms == (MOMENT_MS + 1, None)
    assert narrowed(LessThanOrEqual(("time",), MOMENT)).times_ms == (None, MOMENT_MS + 1)
    whole = MOMENT.replace(microsecond=678_000)
    assert narrowed(GreaterThanOrEqual(("time",), whole)).times_ms == (MOMENT_MS, None)
    assert narrowed(GreaterThan(("time",), whole)).times_ms == (MOMENT_MS + 1, None)
    assert narrowed(LessThan(("time",), whole)).times_ms == (None, MOMENT_MS)
    assert narrowed(LessThanOrEqual(("time",), whole)).times_ms == (None, MOMENT_MS + 1)
    assert narrowed(EqualTo(("time",), whole)).times_ms == (MOMENT_MS, MOMENT_MS + 1)
    elsewhere = whole.astimezone(timezone(timedelta(hours=5)))
    assert narrowed(EqualTo(("time",), elsewhere)).times_ms == (MOMENT_MS, MOMENT_MS + 1)


def test_what_is_not_understood_narrows_nothing() -> None:
    narrowing = narrowed(
        IsNotNull(("topic",)),
        Not(EqualTo(("topic",), "a")),
        StringStartsWith(("topic",), "a"),
        EqualTo(("topic", "deep"), "a"),
        EqualTo(("topic",), None),
        EqualTo(("payload",), b"x"),
        EqualTo(("offset",), "12"),
        In(("offset",), (1, None)),
        Not(GreaterThan(("offset",), 15)),
    )
    assert len(kept(narrowing)) == 18
    assert narrowing.offsets(0, 20) == (0, 20)
    assert narrowing.times_ms == (None, None)
