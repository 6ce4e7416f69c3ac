"""Structured log lines on standard error: JSON for machines, pretty on a terminal.

    _log = logger("store")
    _log.warning("store connection lost", unanswered=3)

A line is an event (a fixed text) plus fields. Payloads, keys and headers are never fields; that is
kept by the people who write log calls, and checked by `tests/test_secrecy.py`.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable
from typing import Any, TextIO

import msgspec

_ROOT = "waystation"
#: Levels by the names that people use for them, DSPS's among them.
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
    """A named source of events."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(f"{_ROOT}.{name}")

    def debug(self, event: str, **fields: Any) -> None:
        """For developers."""
        self._emit(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Something normal that operators may want to see."""
        self._emit(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Something odd that was handled."""
        self._emit(logging.WARNING, event, fields)

    def error(self, event: str, *, error: BaseException | None = None, **fields: Any) -> None:
        """Something that needs a person; with `error`, its trace goes along."""
        self._emit(logging.ERROR, event, fields, error)

    def _emit(
        self, level: int, event: str, fields: dict[str, Any], error: BaseException | None = None
    ) -> None:
        if self._logger.isEnabledFor(level):
            info = (type(error), error, error.__traceback__) if error else None
            self._logger.log(level, event, extra={"fields": fields}, exc_info=info)


def logger(name: str) -> Logger:
    """The logger of one part of the product."""
    _sources.add(name)
    return Logger(name)


def sources() -> frozenset[str]:
    """The parts of the product that write log lines in this process."""
    return frozenset(_sources)


def set_level(level: str, parts: Iterable[str]) -> None:
    """Sets the level of some parts of the product."""
    for part in parts:
        logging.getLogger(f"{_ROOT}.{part}").setLevel(level)


def set_level_of_all(level: str) -> None:
    """Sets the level of all parts, whatever they had before."""
    set_level("NOTSET", _sources)
    logging.getLogger(_ROOT).setLevel(level)


def configure_logging(*, format: str, level: str, stream: TextIO | None = None) -> None:  # noqa: A002
    """Sends all log lines of the process, libraries' warnings included, to `stream`."""
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
            # Half a character, as in the name of a file that is not UTF-8: any line beats none.
            whole = {name: _whole(value) for name, value in line.items()}
            return msgspec.json.encode(whole).decode()


class _Pretty(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        style = _LEVEL_STYLES.get(record.levelname, "0")
        fields = "  ".join(f"{k}={_shown(v)}" for k, v in getattr(record, "fields", {}).items())
        source = record.name.removeprefix(f"{_ROOT}.")
        line = f"\x1b[2m{clock}\x1b[0m \x1b[{style}m{source}\x1b[0m {record.getMessage()}  "
        line += f"\x1b[2m{fields}\x1b[0m" if fields else ""
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line.rstrip()


def _whole(value: object) -> str:
    return str(value).encode(errors="replace").decode()


def _shown(value: object) -> str:
    """A value on one line: nothing in it can begin a line of its own or steer the terminal."""
    text = str(value)
    return text if text.isprintable() else repr(text)
