"""Structured log lines on standard error: JSON for machines, pretty on a terminal.

    _log = logger("store")
    _log.warning("store connection lost", unanswered=3)

A line is an event (a fixed text) with fields. Payloads, API keys and headers must never be fields;
`tests/test_secrecy.py` checks this.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable
from typing import Any, TextIO

import msgspec

_ROOT = "waystation"
#: Accepted level names, including those of DSPS, and the levels of the standard library.
LEVELS = {
    "debug": "DEBUG",
    "info": "INFO",
    "warn": "WARNING",
    "warning": "WARNING",
    "error": "ERROR",
    "fatal": "CRITICAL",
}
_sources: set[str] = set()
_LEVEL_STYLES = {"DEBUG": "2", "INFO": "36", "WARNING": "33", "ERROR": "31", "CRITICAL": "31;1"}


class Logger:
    """Writer of log lines for one part of the product."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(f"{_ROOT}.{name}")

    def debug(self, event: str, **fields: Any) -> None:
        """Log an event for developers."""
        self._emit(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Log a normal event that operators may want to see."""
        self._emit(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log an unexpected event that the process handled."""
        self._emit(logging.WARNING, event, fields)

    def error(self, event: str, *, error: BaseException | None = None, **fields: Any) -> None:
        """Log an event that needs an operator, with the trace of `error`."""
        self._emit(logging.ERROR, event, fields, error)

    def _emit(
        self, level: int, event: str, fields: dict[str, Any], error: BaseException | None = None
    ) -> None:
        if self._logger.isEnabledFor(level):
            info = (type(error), error, error.__traceback__) if error else None
            self._logger.log(level, event, extra={"fields": fields}, exc_info=info)


def logger(name: str) -> Logger:
    """Return the logger of one part of the product."""
    _sources.add(name)
    return Logger(name)


def sources() -> frozenset[str]:
    """Return the names of all loggers of this process."""
    return frozenset(_sources)


def set_level(level: str, parts: Iterable[str]) -> None:
    """Set the level of the loggers of these parts."""
    for part in parts:
        logging.getLogger(f"{_ROOT}.{part}").setLevel(level)


def set_level_of_all(level: str) -> None:
    """Set the level of all loggers, and drop levels that were set for single ones."""
    set_level("NOTSET", _sources)
    logging.getLogger(_ROOT).setLevel(level)


def configure_logging(*, format: str, level: str, stream: TextIO | None = None) -> None:  # noqa: A002
    """Send all log lines of the process, including warnings of libraries, to `stream`."""
    stream = stream or sys.stderr
    pretty = format == "pretty" or (format == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Pretty() if pretty else _Json())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(_ROOT).setLevel(level.upper())


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        seconds, milliseconds = divmod(int(record.created * 1000), 1000)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        line = {
            "time": f"{stamp}.{milliseconds:03d}Z",
            "level": record.levelname.lower(),
            "source": record.name.removeprefix(f"{_ROOT}."),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        try:
            return msgspec.json.encode(line, enc_hook=str).decode()
        except UnicodeEncodeError:
            # A lone surrogate, as in a file name that is not UTF-8. Replace it to keep the line.
            encodable = {name: _encodable(value) for name, value in line.items()}
            return msgspec.json.encode(encodable).decode()


class _Pretty(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        style = _LEVEL_STYLES.get(record.levelname, "0")
        fields = "  ".join(f"{k}={_printable(v)}" for k, v in getattr(record, "fields", {}).items())
        source = record.name.removeprefix(f"{_ROOT}.")
        event = _printable(record.getMessage())
        line = f"\x1b[2m{clock}\x1b[0m \x1b[{style}m{source}\x1b[0m {event}  "
        line += f"\x1b[2m{fields}\x1b[0m" if fields else ""
        if record.exc_info:
            line += "\n" + _printable_lines(self.formatException(record.exc_info))
        return line.rstrip()


def _encodable(value: object) -> str:
    return str(value).encode(errors="replace").decode()


def _printable(value: object) -> str:
    """Format a value for one line; escape characters that end a line or control the terminal."""
    text = str(value)
    return text if text.isprintable() else repr(text)


def _printable_lines(text: str) -> str:
    """Escape characters that control the terminal, but keep the lines of a trace."""
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode()
        for each in text
    )
