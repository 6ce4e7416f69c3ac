"""What a step logs: lines for the journal of its transaction, and for the log of the process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from waystation.runtime.logging import logger
from waystation.transactions.journal import LINE_BYTES_MAX, LINES_KEPT, cut
from waystation.transactions.record import LogLine

_log = logger("steps")


class StepLog:
    """Takes lines at four levels; the newest 100 are kept for the journal."""

    def __init__(self, transaction: str, place: str, now_ms: Callable[[], int]) -> None:
        self.lines: deque[LogLine] = deque(maxlen=LINES_KEPT)
        self._whose = {"transaction": transaction, "place": place}
        self._now_ms = now_ms

    def debug(self, text: str, **fields: object) -> None:
        """For developers."""
        self._say("debug", text, fields)

    def info(self, text: str, **fields: object) -> None:
        """Something normal that a reader of the journal may want to see."""
        self._say("info", text, fields)

    def warning(self, text: str, **fields: object) -> None:
        """Something odd that was handled."""
        self._say("warning", text, fields)

    def error(self, text: str, **fields: object) -> None:
        """Something that needs a person."""
        self._say("error", text, fields)

    def _say(self, level: str, text: str, fields: dict[str, object]) -> None:
        told = "".join((str(text), *(f" {name}={value}" for name, value in fields.items())))
        self.lines.append(LogLine(self._now_ms(), level, cut(told, LINE_BYTES_MAX)))
        # One text: names of fields are the user's, and must not meet those of a log line.
        getattr(_log, level)("a step says", text=told, **self._whose)
