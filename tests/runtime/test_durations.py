"""Durations: the text form of Go that DSPS clients send, and days, numbers and timedeltas."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.errors import InvalidInputError
from waystation.runtime.durations import Duration, duration_ms, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("+0", 0.0),
        ("-0", 0.0),
        ("0s", 0.0),
        ("30s", 30.0),
        ("+30s", 30.0),
        ("-30s", -30.0),
        ("3s", 3.0),
        ("500ms", 0.5),
        ("1.5s", 1.5),
        ("1.s", 1.0),
        (".5s", 0.5),
        ("-.5s", -0.5),
        ("1m30s", 90.0),
        ("1h15m30.918s", 4530.918),
        ("30s1m", 90.0),
        ("1s1s", 2.0),
        ("2h", 7200.0),
        ("1000us", 0.001),
        ("1000µs", 0.001),
        ("1000μs", 0.001),
        ("5ns", 5e-9),
        ("0.100000000000000000000h", 360.0),
        ("007s", 7.0),
        ("2562047h", 2562047 * 3600.0),
        ("9223372036s", 9223372036.0),
    ],
)
def test_parse_duration_reads_durations_of_go(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "30",
        "00",
        "1",
        "-1",
        "+",
        "-",
        "s",
        ".s",
        ".",
        "-.s",
        "+-3s",
        "--3s",
        "3 s",
        " 3s",
        "3s ",
        "3s\n",
        "3S",
        "3d",
        "3w",
        "3sec",
        "3ss",
        "1.2.3s",
        "1e3s",
        "0x10s",
        "1_000s",
        "1,5s",
        "1m30",
        "s3",
        "٣s",
        "３s",
        "inf",
        "nan",
        "infs",
        "2562048h",
        "9223372037s",
        "1" * 400 + "h",
        "9" * 90 + "h",
        "3\0s",
    ],
    ids=lambda text: text[:20].encode("unicode_escape").decode() or "empty",
)
def test_parse_duration_of_invalid_text_returns_none(text: str) -> None:
    assert parse_duration(text) is None


@given(st.text(max_size=120))
def test_parse_duration_of_any_text_never_raises(text: str) -> None:
    seconds = parse_duration(text)
    assert seconds is None or abs(seconds) < 2**63 / 1e9 + 1


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        ("2d", 172_800_000),
        ("1.5d", 129_600_000),
        ("1d12h", 129_600_000),
        ("0d1ms", 1),
        ("30s", 30_000),
        ("0", 0),
        (90, 90_000),
        (0.0015, 2),
        (timedelta(minutes=1), 60_000),
        ("36500d", 36_500 * 86_400_000),
    ],
)
def test_duration_ms_reads_days_numbers_and_timedeltas(value: Duration, ms: int) -> None:
    assert duration_ms(value, field="at_most") == ms


_NO_TEXTS = ["", "2", "d", "2d-1h", "2d+1h", "2dd", "1h2d", "-1s", "-2d", "36501d", "1e3s", "٣d"]
_NO_VALUES = [-1, True, None, [], float("nan"), float("inf"), 10**400, timedelta(seconds=-1)]


@pytest.mark.parametrize("value", [*_NO_TEXTS, *_NO_VALUES], ids=lambda value: str(value)[:9])
def test_duration_ms_of_invalid_value_names_its_field(value: Duration) -> None:
    with pytest.raises(InvalidInputError, match="at_most") as refused:
        duration_ms(value, field="at_most")
    assert refused.value.field == "at_most"
