"""Backoff and retry_transient: growing pauses, one log line per error, transient errors only."""

from __future__ import annotations

import logging

import pytest

from waystation.errors import (
    BusyError,
    StoreDataLostError,
    StoreReplyError,
    StoreUnavailableError,
    TransientError,
)
from waystation.runtime.backoff import Backoff, log_failure, retry_transient
from waystation.runtime.logging import logger

LOG = logger("backoff_test")


@pytest.fixture(autouse=True)
def quick_pauses(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(Backoff, "next_pause_s", _count_without_pause)
    caplog.set_level(logging.INFO, logger="waystation")


def _count_without_pause(backoff: Backoff) -> float:
    backoff.failures += 1
    return 0.0


class Backend:
    """A backend that fails with the given errors, one per call, and then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    async def call(self) -> str:
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.message) for record in caplog.records]


async def test_retry_transient_logs_each_kind_of_error_once_and_the_success(
    caplog: pytest.LogCaptureFixture,
) -> None:
    backend = Backend(
        StoreUnavailableError("silent"),
        StoreUnavailableError("silent"),
        BusyError("full"),
        StoreUnavailableError("silent"),
    )

    assert await retry_transient(backend.call, what="commit", log=LOG) == "answer"
    assert lines(caplog) == [
        ("WARNING", "task attempt failed"),
        ("WARNING", "task attempt failed"),
        ("INFO", "task resumed"),
    ]


async def test_retry_transient_without_failure_logs_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert await retry_transient(Backend().call, what="commit", log=LOG) == "answer"
    assert lines(caplog) == []


async def test_retry_transient_raises_refusal() -> None:
    backend = Backend(StoreUnavailableError("silent"), StoreReplyError("ERR bug"))

    with pytest.raises(StoreReplyError):
        await retry_transient(backend.call, what="commit", log=LOG)


async def test_retry_transient_repeats_errors_listed_in_also_and_logs_them_as_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    backend = Backend(StoreReplyError("ERR bug"), StoreReplyError("ERR bug"))

    await retry_transient(backend.call, what="commit", log=LOG, also=(StoreReplyError,))

    assert lines(caplog) == [("ERROR", "task failed"), ("INFO", "task resumed")]
    assert "ERR bug" in caplog.text


def test_log_failure_logs_lost_data_as_warning(caplog: pytest.LogCaptureFixture) -> None:
    log_failure(LOG, "commit", StoreDataLostError("other data set"))

    assert lines(caplog) == [("WARNING", "task attempt failed")]


def test_refusal_of_the_store_is_not_transient() -> None:
    assert not isinstance(StoreReplyError("ERR bug"), TransientError)


def test_backoff_doubles_pauses_up_to_its_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("random.random", lambda: 0.5)
    backoff = Backoff(first_s=0.1, max_s=1.0)

    assert [backoff.next_pause_s() for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    backoff.failures = 100_000
    assert backoff.next_pause_s() == 1.0
    backoff.reset()
    assert backoff.next_pause_s() == 0.1
