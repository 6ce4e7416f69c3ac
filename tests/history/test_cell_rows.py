"""Transactions in the lake: every change once, with the attempts of its step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable

from tests.helpers.server import background_station
from tests.history.lake_check import projected_rows
from tests.history.local_ingest import local_ingest
from tests.history.log_writer import LogWriter
from waystation import App, Child, Fail, Parallel, Waystation
from waystation.config import Config, TransactionConfig
from waystation.history.decoders.cells import cell_rows
from waystation.history.ingest.retention import SOFT
from waystation.history.lake.projections import PROJECTIONS
from waystation.history.lake.table import LakeTable
from waystation.history.log_reader import LogReader
from waystation.history.offsets import OffsetRange
from waystation.history.store_access import store_access
from waystation.logs.protocol import LogBatch
from waystation.transactions.log_entry import AttemptDetail, StepDetail

_pack = msgspec.msgpack.encode
ID = "tx-" + "0" * 40


class DeathError(Exception):
    """Simulated crash of the process."""


def orders() -> App:
    app = App()

    @app.step("order/check")
    async def check(ctx: Any, order: dict[str, int]) -> Any:
        return order if order["cents"] > 0 else Fail("nothing to pay")

    @app.step("order/pay")
    async def pay(ctx: Any, order: dict[str, int]) -> Any:
        return {"paid": order["cents"]}

    @app.step("order/split")
    async def split(ctx: Any, order: dict[str, int]) -> Any:
        return Parallel([Child("single", {"cents": n}) for n in (1, 2)])

    app.pipeline("order", ["order/check", "order/pay"])
    app.pipeline("single", ["order/pay"], startable=False)
    app.pipeline("split", ["order/split"])
    return app


def rows(lake: Path, table: str) -> list[dict[str, Any]]:
    found = DeltaTable(str(lake / table)).to_pyarrow_table()
    order = [(name, "ascending") for name in ("log_partition", "log_offset", "item")]
    return found.sort_by(order).to_pylist()


def test_every_change_and_every_step_is_a_row_once(
    settings: Config, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One cell, so that one record log has all changes.
    settings = msgspec.structs.replace(settings, transactions=TransactionConfig(cells=1))
    with background_station(settings, app=orders()) as station, Waystation(station.url) as client:
        good = client.transactions.start("order", {"cents": 5}, external_id="o-1")
        bad = client.transactions.start("order", {"cents": 0})
        fan = client.transactions.start("split", {"cents": 3})
        assert [tx.wait("30s").status for tx in (good, bad, fan)] == [
            "success",
            "failed",
            "success",
        ]
        with store_access(settings) as access:
            commit = LakeTable.commit

            def dies(table: LakeTable, *given: Any) -> None:
                commit(table, *given)
                raise DeathError

            # Given an ingest that crashed between its commit and its hold in the store
            with monkeypatch.context() as patch:
                patch.setattr(LakeTable, "commit", dies)
                with pytest.raises(DeathError):
                    local_ingest(lake, access.resolve()).run()
            assert len(rows(lake, "transactions")) > 0

            # Then the next one sets the hold and ingests nothing twice
            assert local_ingest(lake, access.resolve()).run().rows == 0
            with LogReader(access.resolve()) as logs:
                end = logs.states([("tx", 0)])["tx", 0].end
            with LogWriter(access.resolve()) as writer:
                held = writer.held("tx")

    changes, steps = rows(lake, "transactions"), projected_rows(lake, "steps")
    assert {row["log_offset"] for row in changes} == set(range(end))
    assert held == {SOFT: end - 1}
    assert not any(row["malformed"] for row in changes)
    by_id: dict[str, list[dict[str, Any]]] = {}
    for row in changes:
        by_id.setdefault(row["transaction_id"], []).append(row)
    assert len(by_id) == 5
    for history in by_id.values():
        # Each is started once and ends once
        assert [row["kind"] for row in history].count("started") == 1
        ends = [row for row in history if row["status"] and row["kind"] != "notified"]
        assert len(ends) == 1
        # Changes after the end are about replies, and have the status of the end
        assert {row["status"] for row in history[history.index(ends[0]) :]} == {ends[0]["status"]}
        assert (history[0]["kind"], history[0]["project"]) == ("started", "default")
    started = by_id[good.id][0]
    (ended,) = [row for row in by_id[good.id] if row["kind"] == "finished"]
    assert (started["pipeline"], started["external_id"]) == ("order", "o-1")
    assert (started["data"], ended["status"], ended["output"]) == (
        '{"cents":5}',
        "success",
        '{"paid":5}',
    )
    assert by_id[bad.id][-1]["status"] == "failed"
    children = [history[0] for history in by_id.values() if history[0]["parent_id"]]
    assert {(row["parent_id"], row["parent_item"]) for row in children} == {
        (fan.id, 1),
        (fan.id, 2),
    }
    done = [(row["place"], row["step_type"]) for row in steps if row["transaction_id"] == good.id]
    assert done == [("1", "order/check"), ("2", "order/pay")]
    assert all(row["started_at"] <= row["ended_at"] for row in steps)
    assert len({(row["log_offset"], row["item"]) for row in steps}) == len(steps)


def test_cell_rows_of_invalid_entries_are_malformed_and_keep_their_bytes() -> None:
    good = [f"woken {ID} 3 1 queued -", None]
    entries = [
        b"no entry",
        _pack([2, "ds", []]),
        _pack([1, "ds", [["woken", None]]]),
        # An invalid detail, beside a fact without a detail
        _pack([1, "ds", [[f"finished {ID} 4 1 complete success why not", "oops"], good]]),
        _pack([1, "ds", [good]]),
    ]

    made = cell_rows(OffsetRange("tx", 0, 7, 12), LogBatch(7, 12, [1000] * 5, entries))

    found = made.to_pylist()
    assert [(row["log_offset"], row["item"]) for row in found] == [
        (7, 0),
        (8, 0),
        (9, 0),
        (10, 0),
        (10, 1),
        (11, 0),
    ]
    assert [row["malformed"] for row in found] == [True, True, True, True, False, False]
    assert [row["snapshot"] for row in found[:3]] == entries[:3]
    assert (found[3]["snapshot"], found[3]["status"]) == (_pack("oops"), "success")
    assert (found[3]["cause"], found[5]["kind"], found[5]["version"]) == ("why not", "woken", 3)
    assert [row["attempts"] for row in found] == [None] * 6


def test_entry_that_is_nested_too_deeply_is_a_row_with_its_bytes() -> None:
    deep = b"\x91" * 5000 + b"\xc0"
    entry = b"\x93\x01\xa1d\x91\x92\xa1x" + deep
    made = cell_rows(OffsetRange("tx", 0, 7, 8), LogBatch(7, 8, [1000], [entry]))
    assert [(row["malformed"], row["snapshot"]) for row in made.to_pylist()] == [(True, entry)]


def test_attempts_of_an_entry_are_rows_of_steps_with_an_item_each() -> None:
    def step(number: int, *places: str) -> list[Any]:
        attempts = [
            AttemptDetail(place, "order/pay", 1, "success", 5, 6, "n", "", 0) for place in places
        ]
        return [f"step {ID[:-1]}{number} {number} 1 running -", StepDetail(attempts=attempts)]

    entries = [_pack([1, "ds", [step(1, "1", "2"), step(2), step(3, "1")]])]

    made = cell_rows(OffsetRange("tx", 0, 7, 8), LogBatch(7, 8, [1000], entries))
    steps = PROJECTIONS["steps"].rows(made).to_pylist()

    assert [(row["log_offset"], row["item"], row["version"], row["place"]) for row in steps] == [
        (7, 0, 1, "1"),
        (7, 1, 1, "2"),
        (7, 2, 3, "1"),
    ]
    assert {row["time"].timestamp() for row in steps} == {1.0}
