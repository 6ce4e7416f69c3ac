"""Durations as DSPS clients write them: `30s`, `1m30s`, `500ms`, `1.5h`, `0`."""

from __future__ import annotations

import re

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
#: Go keeps durations in 64 bits of nanoseconds; longer ones are refused there too.
_SECONDS_MAX = (2**63 - 1) / 1e9
_LENGTH_MAX = 100


def parse_duration(text: str) -> float | None:
    """Seconds, or None when `text` is no duration. A unit is needed, except for 0."""
    if len(text) > _LENGTH_MAX:
        return None
    match = _WHOLE.fullmatch(text)
    if match is None:
        return None
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in _EACH.findall(match.group(2)))
    if seconds > _SECONDS_MAX:
        return None
    return -seconds if match.group(1) == "-" else seconds
