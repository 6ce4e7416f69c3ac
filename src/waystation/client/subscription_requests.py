"""What clients send about subscriptions: paths, queries, times, selections."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from waystation.client.subscriptions import Start
from waystation.errors import InvalidInputError
from waystation.runtime.ids import require_name

PATH = "/v1/subscriptions"


def start_of(start: Start, *, field: str) -> str | int:
    """Where to begin, as the API takes it."""
    if isinstance(start, str):
        return start
    return time_ms(start, field=field)


def time_ms(moment: datetime, *, field: str) -> int:
    """A time as the API takes it."""
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise InvalidInputError(f"{field} is a datetime with a time zone.", field=field)
    return round(moment.timestamp() * 1000)


def path_of(name: str, *parts: str) -> str:
    """The path of a subscription, or of something that it has."""
    require_name(name, field="subscription")
    return "/".join([PATH, name, *(quote(each, safe="") for each in parts)])


def query_of(asked: dict[str, str]) -> str:
    """A query of what is not empty."""
    return urlencode({name: value for name, value in asked.items() if value})


def times_of(after: datetime | None, before: datetime | None) -> dict[str, int]:
    """Between which times something failed, as the API takes it."""
    given = {"failed_after": after, "failed_before": before}
    return {
        name: time_ms(moment, field=name) for name, moment in given.items() if moment is not None
    }


def selection_of(
    group: str,
    message: str,
    times: dict[str, int],
    *,
    rate: float | None,
    dry_run: bool,
) -> dict[str, Any]:
    """What an operation is about, as the API takes it."""
    asked: dict[str, Any] = {"dry_run": dry_run, **times}
    given = {"group": group, "message": message, "rate": rate}
    return asked | {name: value for name, value in given.items() if value not in ("", None)}
