"""Holds of history: which entries the store keeps for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.conftest import Run, run  # noqa: F401 (a fixture)
from tests.history.log_writer import LogWriter, envelopes
from waystation.config import Config
from waystation.errors import LogFullError
from waystation.history.audit import Live
from waystation.history.ingest.retention import HARD, SOFT, RetentionHolds, register, release_all
from waystation.history.log_reader import LogReader
from waystation.history.offsets import OffsetRange
from waystation.history.store_access import store_access
from waystation.logs import keys
from waystation.messages.envelope import pack
from waystation.store.keys import FORMAT

ORDERS = "t.default.orders.0"
KEY = f"{ORDERS}/0"


@pytest.fixture
def logs(store_url: str) -> Iterator[LogReader]:
    with LogReader(store_url) as reader:
        yield reader


def tell(logs: LogReader, holds: RetentionHolds, offset: int) -> None:
    states = logs.states([(ORDERS, 0)])
    holds.hold(logs, {KEY: offset}, {KEY: states[ORDERS, 0]})


def test_a_hard_hold_stops_producers_until_history_has_caught_up(
    writer: LogWriter, logs: LogReader
) -> None:
    size = len(pack(envelopes(1)[0]))
    writer.create(ORDERS, max_bytes=10 * size)
    holds = RetentionHolds("refuse")
    tell(logs, holds, 0)
    writer.append(ORDERS, envelopes(10))
    with pytest.raises(LogFullError):
        writer.append(ORDERS, envelopes(1))
    read = logs.states([(ORDERS, 0)])[ORDERS, 0]
    assert read.first == 0

    tell(logs, holds, read.end)

    assert writer.held(ORDERS) == {HARD: read.end - 1}
    writer.append(ORDERS, envelopes(1))
    assert logs.states([(ORDERS, 0)])[ORDERS, 0].dropped == 0


def test_holds_after_a_change_of_the_setting_full_are_one_per_log(
    writer: LogWriter, logs: LogReader
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(10))
    tell(logs, RetentionHolds("drop_and_count"), 4)
    assert writer.held(ORDERS) == {SOFT: 3}
    tell(logs, RetentionHolds("refuse"), 6)
    assert writer.held(ORDERS) == {HARD: 5}
    tell(logs, RetentionHolds("drop_and_count"), 6)
    assert writer.held(ORDERS) == {SOFT: 5}


def test_a_sealed_log_is_let_go_once_it_was_read_to_its_end(
    writer: LogWriter, logs: LogReader
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(10))
    writer.seal(ORDERS)
    holds = RetentionHolds("drop_and_count")
    tell(logs, holds, 9)
    assert writer.held(ORDERS) == {SOFT: 8}
    tell(logs, holds, 10)
    assert writer.held(ORDERS) == {}


def test_a_log_that_is_sealed_after_it_was_read_is_let_go_by_who_has_read_it(
    writer: LogWriter, logs: LogReader
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(10))
    holds = RetentionHolds("drop_and_count")
    tell(logs, holds, 10)
    assert writer.held(ORDERS) == {SOFT: 9}
    state = logs.states([(ORDERS, 0)])[ORDERS, 0]
    assert holds.unread({KEY: state}) == {}

    writer.seal(ORDERS)

    state = logs.states([(ORDERS, 0)])[ORDERS, 0]
    assert holds.unread({KEY: state}) == {KEY: state}
    tell(logs, holds, 10)
    assert writer.held(ORDERS) == {}
    assert holds.unread({KEY: state}) == {}


def test_a_log_that_is_gone_or_was_trimmed_meanwhile_is_no_problem(
    writer: LogWriter, logs: LogReader
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(50))
    before = logs.states([(ORDERS, 0)])[ORDERS, 0]
    first = writer.trim_to(ORDERS, 300)
    holds = RetentionHolds("drop_and_count")
    holds.hold(logs, {KEY: 5}, {KEY: before})
    assert writer.held(ORDERS) == {SOFT: first}
    writer.delete(ORDERS)
    holds.hold(logs, {KEY: 50}, {KEY: before})
    assert writer.held(ORDERS) == {}


def test_history_release_removes_the_holds_of_all_logs(
    run: Run,  # noqa: F811
    settings: Config,
) -> None:
    with store_access(settings) as access, LogWriter(access.resolve()) as writer:
        writer.flush()
        writer.create(ORDERS, 2)
        with LogReader(access.resolve()) as logs:
            states = {f"{ORDERS}/{n}": logs.states([(ORDERS, n)])[ORDERS, n] for n in (0, 1)}
            RetentionHolds("refuse").hold(logs, dict.fromkeys(states, 0), states)
        released = [
            run("history", "release", "--data", settings.data, "--json").stdout for _ in range(2)
        ]
        assert released == ['{"released":2}\n', '{"released":0}\n']
        assert (writer.held(ORDERS, 0), writer.held(ORDERS, 1)) == ({}, {})


def test_register_of_history_holds_logs_from_what_they_keep(
    writer: LogWriter, store_url: str
) -> None:
    writer.create("tx", 2)
    writer.append_raw("tx", [b"x"] * 10)
    writer.create("s.default.crm.0")
    first = writer.trim_to("tx", 4)
    assert first > 0
    states = {("tx", 0), ("tx", 1), ("s.default.crm.0", 0)}
    with LogReader(store_url) as logs:
        found = logs.states(sorted(states))
        register(logs, SOFT, {f"{log}/{part}": state for (log, part), state in found.items()})
        assert writer.held("tx", 0) == {SOFT: first}
        assert writer.held("tx", 1) == writer.held("s.default.crm.0") == {SOFT: 0}
        # A hold that is there already stays
        logs.hold(OffsetRange("tx", 0, 9, 10), SOFT)
        register(logs, SOFT, {f"{log}/{part}": state for (log, part), state in found.items()})
        assert writer.held("tx", 0) == {SOFT: 9}
        assert writer.command("HGET", FORMAT, "history") == SOFT.encode()
        release_all(logs)
    assert writer.held("tx", 0) == {}
    assert writer.command("HGET", FORMAT, "history") is None


def test_live_counts_entries_that_were_dropped_before_history_registered(
    writer: LogWriter, store_url: str
) -> None:
    writer.create("tx")
    limits = ("max_bytes", 100, "policy", "drop_and_count", "unread_bytes", 10)
    writer.command("HSET", keys.head("tx", 0), *limits)
    for _ in range(25):
        writer.append_raw("tx", [b"x"])
    with Live(store_url) as live:
        assert live.unread() == {("tx", 0): 15}
