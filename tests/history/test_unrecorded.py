"""`history.record = "none"`: nodes write no record logs, and count the omitted events."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.helpers.server import background_station
from waystation import App, Waystation
from waystation.config import Config, HistoryConfig, RecordLogs, TransactionConfig
from waystation.history.log_reader import LogReader
from waystation.history.store_access import store_access
from waystation.logs.protocol import LogState
from waystation.testing.station import quick_settings

ORDERS = 5


def work(settings: Config, topic: str) -> dict[str, LogState]:
    """Run messages as transactions to their ends; return the states of all record logs."""
    app, paid = App(), threading.Semaphore(0)

    @app.step("pay")
    async def pay(ctx: object, order: dict[str, int]) -> dict[str, int]:
        paid.release()
        return order

    app.pipeline("order", ["pay"])
    with background_station(settings, app=app) as station, Waystation(station.url) as client:
        client.topics.create(topic)
        client.subscriptions.create(topic, topic=topic, endpoint="pipeline:order")
        for number in range(ORDERS):
            client.topics.produce(topic, {"n": number}, group="g")
        for _ in range(ORDERS):
            assert paid.acquire(timeout=30)
        # Running transactions end before the node does.
    with store_access(settings) as access, LogReader(access.resolve()) as logs:
        names = logs.names()
        states = logs.states((log, n) for log in names for n in range(names[log]))
    return {f"{log}/{n}": state for (log, n), state in states.items() if not log.startswith("t.")}


def settings_of(folder: Path, record: RecordLogs) -> Config:
    one_cell = TransactionConfig(cells=1)
    history = HistoryConfig(record=record)
    return quick_settings(str(folder), history=history, transactions=one_cell)


def test_what_is_not_recorded_is_counted_and_everything_else_goes_on(
    tmp_path: Path,
) -> None:
    states = work(settings_of(tmp_path, "none"), "orders")

    assert all(state.end == 0 for state in states.values()), states
    assert not [key for key in states if key.startswith("webhooks")]
    counts = {key: state.unrecorded for key, state in states.items() if state.unrecorded}
    # Each was started, and ended
    assert sum(n for key, n in counts.items() if key.startswith("tx/")) >= 2 * ORDERS
    # A start of each shard, and each message was delivered
    assert sum(n for key, n in counts.items() if key.startswith("s.")) >= ORDERS + 1


def test_it_can_be_switched_on_again_and_what_is_missing_stays_counted(
    tmp_path: Path,
) -> None:
    before = work(settings_of(tmp_path, "none"), "orders")
    after = work(settings_of(tmp_path, "full"), "more")

    assert after["tx/0"].end > 0
    assert after["tx/0"].unrecorded == before["tx/0"].unrecorded
    assert after["s.default.more.0/0"].end > 0
    assert after["s.default.more.0/0"].unrecorded == 0
