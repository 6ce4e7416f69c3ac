"""Filters that Spark pushes down: what they exclude from a scan, and what they must not exclude."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from waystation.archive.scan import Condition
from waystation.history.offsets import OffsetRange
from waystation.history.sources.filters import ScanBounds, archive_condition

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC)
MOMENT_MS = 1_767_323_045_678


def scan_bounds(*conditions: Filter) -> ScanBounds:
    bounds = ScanBounds()
    for condition in conditions:
        bounds.add(condition)
    return bounds


def included(bounds: ScanBounds) -> set[tuple[str, int, int]]:
    """Return topic, storage topic and partition of each included partition of 18."""
    return {
        (topic, storage, partition)
        for topic in ("a", "b", "c")
        for storage in (0, 1)
        for partition in (0, 1, 2)
        if bounds.narrow_offsets(OffsetRange(f"t.default.{topic}.{storage}", partition, 0, 9))
    }


def offsets(*conditions: Filter, log: str = "t.default.a.0") -> tuple[int, int] | None:
    """Return what the conditions leave of offsets 10 to 19."""
    part = scan_bounds(*conditions).narrow_offsets(OffsetRange(log, 0, 10, 20))
    return (part.start, part.end) if part else None


def test_scan_bounds_include_only_partitions_that_filters_name() -> None:
    assert included(scan_bounds(EqualTo(("topic",), "a"), EqualTo(("storage",), 1))) == {
        ("a", 1, 0),
        ("a", 1, 1),
        ("a", 1, 2),
    }
    several = scan_bounds(In(("topic",), ("a", "b")), In(("topic",), ("b", "c")))
    assert {topic for topic, _, _ in included(several)} == {"b"}
    some = scan_bounds(GreaterThan(("partition",), 0), LessThanOrEqual(("partition",), 1))
    assert {partition for _, _, partition in included(some)} == {1}
    assert not included(scan_bounds(EqualTo(("project",), "other")))


def test_scan_bounds_move_both_ends_of_a_range_by_filters_on_offsets() -> None:
    assert offsets() == (10, 20)
    assert offsets(GreaterThanOrEqual(("offset",), 12)) == (12, 20)
    assert offsets(GreaterThan(("offset",), 12), LessThan(("offset",), 15)) == (13, 15)
    assert offsets(In(("offset",), (18, 11))) == (11, 19)
    assert offsets(EqualNullSafe(("offset",), 12)) == (12, 13)
    for outside in (EqualTo(("offset",), 5), EqualTo(("offset",), 20), LessThan(("offset",), 10)):
        assert offsets(outside) is None


def test_scan_bounds_of_record_logs_ignore_columns_of_topics_and_vice_versa() -> None:
    shard = "s.default.billing.0"
    assert offsets(GreaterThan(("log_offset",), 12), log=shard) == (13, 20)
    assert offsets(EqualTo(("log",), "operations"), log=shard) is None
    assert offsets(EqualTo(("log_partition",), 1), log=shard) is None
    assert offsets(EqualTo(("offset",), 5), EqualTo(("topic",), "b"), log=shard) == (10, 20)
    assert offsets(EqualTo(("log_offset",), 5), EqualTo(("log",), "operations")) == (10, 20)


def test_scan_bounds_of_time_are_whole_milliseconds_that_include_every_row() -> None:
    # An entry of the same millisecond has an earlier time than the moment, so it does not pass.
    assert scan_bounds(GreaterThanOrEqual(("time",), MOMENT)).times_ms == (MOMENT_MS + 1, None)
    assert scan_bounds(LessThanOrEqual(("time",), MOMENT)).times_ms == (None, MOMENT_MS + 1)
    whole = MOMENT.replace(microsecond=678_000)
    assert scan_bounds(GreaterThanOrEqual(("time",), whole)).times_ms == (MOMENT_MS, None)
    assert scan_bounds(GreaterThan(("time",), whole)).times_ms == (MOMENT_MS + 1, None)
    assert scan_bounds(LessThan(("time",), whole)).times_ms == (None, MOMENT_MS)
    assert scan_bounds(LessThanOrEqual(("time",), whole)).times_ms == (None, MOMENT_MS + 1)
    assert scan_bounds(EqualTo(("time",), whole)).times_ms == (MOMENT_MS, MOMENT_MS + 1)
    elsewhere = whole.astimezone(timezone(timedelta(hours=5)))
    assert scan_bounds(EqualTo(("time",), elsewhere)).times_ms == (MOMENT_MS, MOMENT_MS + 1)


def test_scan_bounds_with_filters_that_they_cannot_use_include_everything() -> None:
    bounds = scan_bounds(
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
    assert len(included(bounds)) == 18
    part = OffsetRange("t.default.a.0", 0, 0, 20)
    assert bounds.narrow_offsets(part) == part
    assert bounds.times_ms == (None, None)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (EqualTo(("id",), "tx-1"), Condition("id", "=", ("tx-1",))),
        (EqualTo(("project",), "shop"), Condition("owner", "=", ("shop",))),
        (In(("status",), ("a", "b")), Condition("status", "in", ("a", "b"))),
        (EqualTo(("version",), 7), Condition("version", "=", (7,))),
        (EqualTo(("external_id",), ""), None),
        (EqualTo(("pipeline",), "no\0text"), None),
        (EqualTo(("state", "x"), "y"), None),
        (StringContains(("pipeline",), "x"), None),
        (In(("started",), (MOMENT,)), None),
        (In(("status",), tuple(map(str, range(501)))), None),
    ],
)
def test_archive_condition_is_none_for_filters_that_the_archive_cannot_evaluate(
    given: Filter, expected: Condition | None
) -> None:
    assert archive_condition(given) == expected


def test_archive_condition_of_a_time_within_a_millisecond_includes_every_row() -> None:
    moment = datetime(2026, 3, 1, microsecond=1_500, tzinfo=UTC)
    ms = int(moment.timestamp()) * 1000 + 1
    before, since = LessThan(("started",), moment), GreaterThanOrEqual(("updated",), moment)
    assert archive_condition(before) == Condition("started_ms", "<", (ms + 1,))
    assert archive_condition(since) == Condition("updated_ms", ">=", (ms + 1,))
