"""Durations: the text form of DSPS (`30s`, `1m30s`, `500ms`, `1.5h`, `0`) and our wider form.

Our own settings and clients also accept days (`2d`), a number of seconds and a timedelta.
"""

from __future__ import annotations

import re
from datetime import timedelta

from waystation.errors import InvalidInputError

#: A duration in settings and in the Python API. A number is in seconds.
Duration = str | float | timedelta

_SECONDS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,  # the micro sign
    "μs": 1e-6,  # the Greek letter; both are in use
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}
_PART = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h)"
_WHOLE = re.compile(rf"([+-]?)(0|(?:{_PART})+)")
_EACH = re.compile(r"([0-9.]+)(ns|us|µs|μs|ms|s|m|h)")
#: DSPS stores durations as 64 bits of nanoseconds (Go) and rejects longer ones.
_SECONDS_MAX = (2**63 - 1) / 1e9
_LENGTH_MAX = 100
_DAYS = re.compile(r"([0-9]+(?:\.[0-9]+)?)d")
_DAY_SECONDS = 86_400
#: A hundred years. Lua computes this many milliseconds exactly.
_DAYS_MAX = 36_500


def parse_duration(text: str) -> float | None:
    """Return the seconds; None if `text` is not a valid duration. Only 0 needs no unit."""
    if len(text) > _LENGTH_MAX:
        return None
    match = _WHOLE.fullmatch(text)
    if match is None:
        return None
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in _EACH.findall(match.group(2)))
    if seconds > _SECONDS_MAX:
        return None
    return -seconds if match.group(1) == "-" else seconds


def duration_ms(value: Duration, *, field: str) -> int:
    """Return a duration in whole milliseconds. Raise InvalidInputError if invalid or negative."""
    seconds = _seconds(value)
    if seconds is None or not 0 <= seconds <= _DAYS_MAX * _DAY_SECONDS:
        raise InvalidInputError(
            f"{field} {str(value)[:80]!r} is not a valid duration.",
            field=field,
            hint="Write it as 500ms, 30s, 1m30s, 2h or 2d, or as a number of seconds.",
        )
    return round(seconds * 1000)


def _seconds(value: object) -> float | None:
    match value:
        case bool():
            return None
        case int() | float():
            return value
        case timedelta():
            return value.total_seconds()
        case str():
            days = _DAYS.match(value)
            if days is None:
                return parse_duration(value)
            rest = parse_duration(value[days.end() :] or "0")
            # Days come first. A sign behind them, as in `2d-1h`, is not allowed.
            unsigned = rest is not None and value[days.end() : days.end() + 1] not in ("+", "-")
            return float(days.group(1)) * _DAY_SECONDS + (rest or 0.0) if unsigned else None
        case _:
            return None
