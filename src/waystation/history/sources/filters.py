"""Narrowing: what a query's filters leave of the logs, found before anything is read.

Filters only ever narrow. Spark checks every row again, so one that is not understood here costs
time, and is never wrong.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from waystation.history.decoders.partitions import TopicPlace

_NAMES = ("project", "topic", "log")
_NUMBERS = ("storage", "partition", "offset", "log_partition", "log_offset")
_MICROSECOND = 1_000_000


class Narrowing:
    """Bounds, all of which a row has to be within."""

    def __init__(self) -> None:
        #: Column -> the names that are asked for.
        self._names: dict[str, set[str]] = {}
        #: Column -> lowest and highest value, both included; of time in microseconds.
        self._bounds: dict[str, tuple[float, float]] = {}

    def add(self, condition: Filter) -> None:
        """Takes a condition into account, if it says something that can be found beforehand."""
        column: tuple[str, ...] = getattr(condition, "attribute", ())
        value: Any = getattr(condition, "value", None)
        if len(column) != 1 or value is None:
            return
        name = column[0]
        if name in _NAMES:
            self._add_names(name, condition, value)
        elif name in _NUMBERS or name == "time":
            self._add_bounds(name, condition, value)

    def keeps(self, place: TopicPlace) -> bool:
        """Whether a partition may have what is asked for."""
        for name, wanted in self._names.items():
            if getattr(place, name) not in wanted:
                return False
        for name in ("storage", "partition"):
            low, high = self._bounds.get(name, (-math.inf, math.inf))
            if not low <= getattr(place, name) <= high:
                return False
        return True

    def keeps_log(self, log: str, partition: int) -> bool:
        """The same of a record log, whose columns have other names."""
        low, high = self._bounds.get("log_partition", (-math.inf, math.inf))
        return log in self._names.get("log", {log}) and low <= partition <= high

    def offsets(self, first: int, end: int, *, column: str = "offset") -> tuple[int, int]:
        """What is left of a range of offsets by conditions on offsets."""
        low, high = self._bounds.get(column, (-math.inf, math.inf))
        start = max(first, low)
        return (end, end) if start >= end else (int(start), int(max(start, min(end, high + 1))))

    @property
    def times_ms(self) -> tuple[int | None, int | None]:
        """From the first time on, and before the second; None: no bound."""
        low, high = self._bounds.get("time", (-math.inf, math.inf))
        since = None if low == -math.inf else _ms(low)
        # The store has whole milliseconds: the first that is too late.
        until = None if high == math.inf else math.floor(high / 1000) + 1
        return since, until

    def _add_names(self, name: str, condition: Filter, value: Any) -> None:
        match condition:
            case EqualTo() | EqualNullSafe():
                wanted = {value}
            case In():
                wanted = set(value)
            case _:
                return
        self._names[name] = self._names.get(name, wanted) & wanted

    def _add_bounds(self, name: str, condition: Filter, value: Any) -> None:
        values = value if isinstance(value, Collection) else (value,)
        numbers = [number for each in values if (number := _number(each)) is not None]
        if not numbers or len(numbers) != len(values):
            return
        low, high = self._bounds.get(name, (-math.inf, math.inf))
        match condition:
            case EqualTo() | EqualNullSafe() | In():
                low, high = max(low, min(numbers)), min(high, max(numbers))
            case GreaterThan():
                low = max(low, numbers[0] + 1)
            case GreaterThanOrEqual():
                low = max(low, numbers[0])
            case LessThan():
                high = min(high, numbers[0] - 1)
            case LessThanOrEqual():
                high = min(high, numbers[0])
            case _:
                return
        self._bounds[name] = (low, high)


def _number(value: Any) -> int | None:
    """A number, or a time as microseconds; None for what is neither."""
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        whole = int(moment.replace(microsecond=0).timestamp())
        return whole * _MICROSECOND + moment.microsecond
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _ms(microseconds: float) -> int:
    return math.ceil(microseconds / 1000)
