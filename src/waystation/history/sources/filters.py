"""Filters that Spark pushes down: bounds of a scan of logs, and conditions of the archive.

A source may ignore a filter that it cannot use, because Spark filters the rows again. So a filter
only ever reduces the entries that a source reads, and never excludes a row of the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from waystation.archive.batch import is_fit
from waystation.archive.scan import Condition, Operator
from waystation.history.decoders.partitions import topic_place
from waystation.history.log_reader import LogReader
from waystation.history.offsets import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

#: Filter classes by name, because PySpark 4.0 has none of them.
_OPERATORS: dict[str, Operator] = {
    "EqualTo": "=",
    "EqualNullSafe": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "In": "in",
}
_NAMES = frozenset({"project", "topic", "log"})
_NUMBERS = frozenset({"storage", "partition", "offset", "log_partition", "log_offset"})
_EVERYTHING = (-math.inf, math.inf)

#: Columns of the source → columns of the archive.
_ARCHIVE_TEXTS = {
    "id": "id",
    "project": "owner",
    "external_id": "external_id",
    "pipeline": "pipeline",
    "status": "status",
    "step": "step",
}
_ARCHIVE_TIMES = frozenset({"wake", "deadline", "started", "updated", "completed"})
#: Values of one condition. The archive ignores longer lists, and Spark evaluates them.
_ARCHIVE_VALUES_MAX = 500


class _Comparison(msgspec.Struct, frozen=True):
    """Comparison of a top-level column with values. Only `in` has several values, or none."""

    column: str
    operator: Operator
    values: tuple[Any, ...]


def _comparison(condition: Filter) -> _Comparison | None:
    """Return the comparison that a filter makes; None for another kind of filter."""
    operator = _OPERATORS.get(type(condition).__name__)
    column: tuple[str, ...] = getattr(condition, "attribute", ())
    if operator is None or len(column) != 1:
        return None
    value: Any = getattr(condition, "value", None)
    return _Comparison(column[0], operator, tuple(value) if operator == "in" else (value,))


class ScanBounds:
    """Names, partitions, offsets and times that a row must have to pass the filters of a query."""

    def __init__(self) -> None:
        #: Column → the names that pass.
        self._names: dict[str, frozenset[str]] = {}
        #: Column → lowest and highest value that pass. Times are in microseconds.
        self._bounds: dict[str, tuple[float, float]] = {}

    def add(self, condition: Filter) -> None:
        """Tighten the bounds by a filter. Ignore a filter that does not bound a known column."""
        found = _comparison(condition)
        if found is None or not found.values:
            return
        if found.column in _NAMES:
            self._add_names(found)
        elif found.column in _NUMBERS or found.column == "time":
            self._add_bounds(found)

    def narrow(self, logs: LogReader, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Return the parts of ranges that can contain rows within the bounds."""
        parts = [part for each in ranges if (part := self.narrow_offsets(each)) is not None]
        since, until = self.times_ms
        if since is not None:
            starts = logs.offsets_at((part.log, part.partition, since) for part in parts)
            parts = [
                _clamped(part, start, part.end) for part, start in zip(parts, starts, strict=True)
            ]
        if until is not None:
            ends = logs.offsets_at((part.log, part.partition, until) for part in parts)
            parts = [_clamped(part, part.start, end) for part, end in zip(parts, ends, strict=True)]
        return [part for part in parts if part.rows]

    def narrow_offsets(self, offsets: OffsetRange) -> OffsetRange | None:
        """Return the part of a range within all bounds except those of time; None for no entry."""
        place = topic_place(offsets.log, offsets.partition)
        if place is None:
            # Columns of record logs have other names than those of topics.
            names = {"log": offsets.log}
            numbers = {"log_partition": offsets.partition}
        else:
            names = {"project": place.project, "topic": place.topic}
            numbers = {"storage": place.storage, "partition": place.partition}
        if any(name not in self._names.get(column, {name}) for column, name in names.items()):
            return None
        for column, number in numbers.items():
            low, high = self._bounds.get(column, _EVERYTHING)
            if not low <= number <= high:
                return None
        low, high = self._bounds.get("log_offset" if place is None else "offset", _EVERYTHING)
        part = _clamped(offsets, low, high + 1)
        return part if part.rows else None

    @property
    def times_ms(self) -> tuple[int | None, int | None]:
        """First time that passes, and the first later time that does not; None without a bound.

        The store has whole milliseconds, and a filter has microseconds.
        """
        low, high = self._bounds.get("time", _EVERYTHING)
        since = None if low == -math.inf else math.ceil(low / 1000)
        until = None if high == math.inf else math.floor(high / 1000) + 1
        return since, until

    def _add_names(self, found: _Comparison) -> None:
        if found.operator not in ("=", "in") or None in found.values:
            return
        names = frozenset(found.values)
        self._names[found.column] = self._names.get(found.column, names) & names

    def _add_bounds(self, found: _Comparison) -> None:
        numbers = [number for each in found.values if (number := _number(each)) is not None]
        if len(numbers) != len(found.values):
            return
        low, high = self._bounds.get(found.column, _EVERYTHING)
        match found.operator:
            case "=" | "in":
                low, high = max(low, min(numbers)), min(high, max(numbers))
            case ">":
                low = max(low, numbers[0] + 1)
            case ">=":
                low = max(low, numbers[0])
            case "<":
                high = min(high, numbers[0] - 1)
            case "<=":
                high = min(high, numbers[0])
        self._bounds[found.column] = (low, high)


def archive_condition(condition: Filter) -> Condition | None:
    """Return the archive's condition for a filter; None if only Spark can evaluate the filter."""
    found = _comparison(condition)
    if found is None or not 0 < len(found.values) <= _ARCHIVE_VALUES_MAX:
        return None
    if column := _ARCHIVE_TEXTS.get(found.column):
        # The archive stores an empty text where the source returns null.
        if all(isinstance(each, str) and each and is_fit(each) for each in found.values):
            return Condition(column, found.operator, found.values)
    elif found.column == "version":
        if all(type(each) is int for each in found.values):
            return Condition("version", found.operator, found.values)
    elif found.column in _ARCHIVE_TIMES and found.operator != "in":
        moment = found.values[0]
        if isinstance(moment, datetime):
            return _time_condition(f"{found.column}_ms", found.operator, moment)
    return None


def _time_condition(column: str, operator: Operator, moment: datetime) -> Condition:
    """Return a condition on whole milliseconds that every row within the filter fulfils."""
    ms, rest = divmod(_microseconds(moment), 1000)
    # A time before the middle of a millisecond is before the next one; a time from the middle on
    # is in the next one at the earliest.
    if rest and operator in (">=", "<"):
        ms += 1
    return Condition(column, operator, (ms,))


def _number(value: Any) -> int | None:
    """Return a number, or a time in microseconds; None for any other value."""
    if isinstance(value, datetime):
        return _microseconds(value)
    return value if type(value) is int else None


def _microseconds(moment: datetime) -> int:
    # Not timestamp() of the whole moment, because a float loses microseconds.
    whole = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(whole.replace(microsecond=0).timestamp()) * 1_000_000 + whole.microsecond


def _clamped(offsets: OffsetRange, low: float, high: float) -> OffsetRange:
    """Return the offsets of a range from `low` up to, but excluding, `high`; at least none."""
    start = int(min(max(offsets.start, low), offsets.end))
    end = int(max(start, min(offsets.end, high)))
    return OffsetRange(offsets.log, offsets.partition, start, end)
