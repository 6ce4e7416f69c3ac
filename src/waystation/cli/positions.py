"""Positions in a channel as people write them: an end, a clock, a time, or how long ago."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from waystation.errors import InvalidInputError
from waystation.runtime.clock import Clock
from waystation.runtime.durations import parse_duration

#: What a time may be.
MOMENT = "a time (2026-11-15T12:00), or how long ago (10m)."
HELP = "beginning, end, a clock (7), a time (2026-11-15T12:00), or how long ago (10m)."


def parse_position(text: str, *, clock: Clock) -> dict[str, Any]:
    """What to tell `seek`."""
    if text in ("beginning", "end"):
        return {"to": text}
    try:
        return {"clock": int(text)}
    except ValueError:
        pass
    try:
        ago = parse_duration(text)
        if ago is not None and ago >= 0:
            now = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
            return {"since": now - timedelta(seconds=ago)}
        # Without a zone it is the time of the person's own clock.
        return {"since": datetime.fromisoformat(text).astimezone(UTC)}
    except (ValueError, OverflowError) as error:
        raise InvalidInputError(f"{text!r} is no position.", hint=f"Give {HELP}") from error


def parse_moment(text: str, *, clock: Clock) -> datetime:
    """A time, or how long ago."""
    position = parse_position(text, clock=clock)
    if "since" not in position:
        raise InvalidInputError(f"{text!r} is no time.", hint=f"Give {MOMENT}")
    moment: datetime = position["since"]
    return moment
