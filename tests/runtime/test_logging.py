"""Log lines: one event each, JSON or pretty, without loss and without injection."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from waystation.runtime.logging import configure_logging, logger

_log = logger("tested")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Restore the logging configuration of pytest."""
    root, ours = logging.getLogger(), logging.getLogger("waystation")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:], level, our_level = before
    root.setLevel(level)
    ours.setLevel(our_level)


def lines_at(level: str) -> io.StringIO:
    stream = io.StringIO()
    configure_logging(format="json", level=level, stream=stream)
    return stream


def read(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_log_line_has_event_and_fields() -> None:
    stream = lines_at("info")
    _log.warning("store connection lost", unanswered=3, address="here:1")
    (line,) = read(stream)
    stamp = line.pop("time")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(stamp))
    assert line == {
        "level": "warning",
        "source": "tested",
        "event": "store connection lost",
        "unanswered": 3,
        "address": "here:1",
    }


def test_log_level_hides_lower_levels() -> None:
    stream = lines_at("warning")
    _log.debug("one")
    _log.info("two")
    _log.warning("three")
    _log.error("four")
    assert [line["event"] for line in read(stream)] == ["three", "four"]

    stream = lines_at("debug")
    _log.debug("one")
    assert [line["level"] for line in read(stream)] == ["debug"]


def test_log_error_has_trace_on_same_line() -> None:
    stream = lines_at("info")
    try:
        raise RuntimeError("it broke")
    except RuntimeError as error:
        _log.error("work failed", error=error, part="store")
    (line,) = read(stream)
    assert line["part"] == "store"
    assert "RuntimeError: it broke" in str(line["trace"])


def test_log_of_libraries_shows_warnings_only() -> None:
    stream = lines_at("debug")
    with_value = "disk %s is slow"
    logging.getLogger("some.library").info("chatter")
    logging.getLogger("some.library").warning(with_value, "sda")
    (line,) = read(stream)
    assert (line["source"], line["event"]) == ("some.library", "disk sda is slow")


@pytest.mark.parametrize(
    "value", [Path("/x"), {1, 2}, b"\xff", float("nan"), "\ud800", ["\udfff"], object(), "a\nb"]
)
def test_log_line_with_any_value_is_one_line(value: object) -> None:
    stream = lines_at("info")
    _log.info("odd", value=value)
    (line,) = read(stream)
    assert line["event"] == "odd"
    assert "value" in line


def test_log_format_auto_is_pretty_on_terminal_and_json_in_pipe() -> None:
    terminal = Terminal()
    configure_logging(format="auto", level="info", stream=terminal)
    _log.info("hello", port=7070)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    assert re.fullmatch(r"\d\d:\d\d:\d\d tested hello  port=7070\n", shown)

    pipe = io.StringIO()
    configure_logging(format="auto", level="info", stream=pipe)
    _log.info("hello", port=7070)
    assert read(pipe)[0]["port"] == 7070


def test_log_format_setting_overrides_terminal() -> None:
    pipe = io.StringIO()
    configure_logging(format="pretty", level="info", stream=pipe)
    _log.info("hello")
    assert "hello" in pipe.getvalue()
    assert "{" not in pipe.getvalue()


def test_log_field_escapes_control_characters() -> None:
    terminal = Terminal()
    configure_logging(format="pretty", level="info", stream=terminal)
    _log.info("hello", name="x\n12:00:00 store all is well \x1b[2J")
    text = terminal.getvalue()
    assert text.count("\n") == 1
    assert "\x1b[2J" not in text


def test_log_message_and_trace_of_a_library_escape_control_characters() -> None:
    terminal = Terminal()
    configure_logging(format="pretty", level="info", stream=terminal)
    try:
        raise ValueError("no \x1b[2J\u202e such name")
    except ValueError:
        name = "\x1b[2J\n12:00:00 store all is well"
        logging.getLogger("library").exception(name)
    text = terminal.getvalue()
    assert "\x1b[2J" not in text
    assert "\u202e" not in text
    assert "ValueError: no \\x1b[2J\\u202e such name" in text
    assert not any(line.startswith("12:00:00 store") for line in text.splitlines())


def test_log_configured_twice_writes_each_line_once() -> None:
    lines_at("info")
    stream = lines_at("info")
    _log.info("once")
    assert len(read(stream)) == 1
