"""What a query's filters are in the language of the archive; what is not understood costs time."""

from __future__ import annotations

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

from waystation.archive.batch import is_fit
from waystation.archive.scan import Condition, Operator

_TEXTS = {
    "id": "id",
    "project": "owner",
    "external_id": "external_id",
    "pipeline": "pipeline",
    "status": "status",
    "step": "step",
}
_TIMES = ("wake", "deadline", "started", "updated", "completed")
_OPERATORS: dict[type[Filter], Operator] = {
    EqualTo: "=",
    EqualNullSafe: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    In: "in",
}
#: Values of one condition: more are for Spark.
_VALUES_MAX = 500


def condition_of(filter_: Filter) -> Condition | None:
    """The same of the archive, or something that rules out less; None where there is none."""
    column: tuple[str, ...] = getattr(filter_, "attribute", ())
    operator = _OPERATORS.get(type(filter_))
    if len(column) != 1 or operator is None:
        return None
    value: Any = getattr(filter_, "value", None)
    values = tuple(value) if operator == "in" else (value,)
    if not values or len(values) > _VALUES_MAX:
        return None
    name = column[0]
    if name in _TEXTS:
        # An empty one is null here, and no value of a filter.
        fit = all(isinstance(each, str) and each and is_fit(each) for each in values)
        return Condition(_TEXTS[name], operator, values) if fit else None
    if name == "version" and all(type(each) is int for each in values):
        return Condition("version", operator, values)
    if name in _TIMES and isinstance(value, datetime):
        return _of_time(f"{name}_ms", operator, value)
    return None


def _of_time(column: str, operator: Operator, moment: datetime) -> Condition:
    """The archive has whole milliseconds, and a filter has microseconds."""
    whole = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    seconds = int(whole.replace(microsecond=0).timestamp())
    ms, beyond = divmod(seconds * 1_000_000 + whole.microsecond, 1000)
    # Before a moment within a millisecond is before the next one; from it on, behind this one.
    if beyond and operator in (">=", "<"):
        ms += 1
    return Condition(column, operator, (ms,))
