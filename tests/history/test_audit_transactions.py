"""Audit of transactions: each has ended once or is alive, and ended ones are in the archive."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.helpers.server import background_station
from tests.helpers.waiting import eventually_sync
from tests.history.log_writer import LogWriter
from waystation import App, Wait, Waystation
from waystation.archive import archive_place
from waystation.config import Config, TransactionConfig
from waystation.history.audit import Findings, Live, audit
from waystation.history.ingest.job import ingest_job
from waystation.history.lake.table import Lake
from waystation.history.store_access import store_access
from waystation.logs.operations import OperationRecord
from waystation.runtime.clock import Clock
from waystation.transactions import names
from waystation.transactions.head import Head


def app() -> App:
    made = App()

    @made.step("pay")
    async def pay(ctx: Any, order: dict[str, int]) -> Any:
        return order

    @made.step("approve")
    async def approve(ctx: Any, order: dict[str, int]) -> Any:
        return order if "ok" in ctx.switches else Wait(switch="ok", at_most="1h")

    made.pipeline("order", ["pay"])
    made.pipeline("approval", ["approve"])
    made.pipeline("discreet", ["pay"], record="none")
    return made


class SlowLive(Live):
    """Live state that calls `meanwhile` between the ingest and the first look-up."""

    meanwhile: Any = None

    def heads(self, ids: Sequence[str]) -> dict[str, Head]:
        if self.meanwhile is not None:
            self.meanwhile()
            self.meanwhile = None
        return super().heads(ids)


def lose(url: str, folder: Path, transaction_id: str) -> None:
    """Delete a transaction from the store, and from the archive as soon as it is there."""
    with closing(sqlite3.connect(folder / "archive.db", timeout=30)) as archive:
        deleted = 0
        while not deleted:
            rows = archive.execute("DELETE FROM state WHERE id = ?", (transaction_id,))
            archive.commit()
            deleted = rows.rowcount
    with LogWriter(url) as writer:
        writer.command("DEL", names.state(transaction_id))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_is_alive_or_ends_meanwhile_is_in_order_and_what_was_planted_is_found(
    spark: SparkSession, settings: Config, lake: Path
) -> None:
    quick = msgspec.structs.replace(
        settings, transactions=TransactionConfig(archive_delay_seconds=0.0)
    )
    with background_station(quick, app=app()) as station, Waystation(station.url) as client:
        client.topics.create("secrets", record="none")
        for number in range(3):
            client.topics.produce("secrets", {"n": number})
        assert client.transactions.start("discreet", {"n": 9}).wait("30s").status == "success"
        done, other, third = (client.transactions.start("order", {"n": n}) for n in range(3))
        for each in (done, other, third):
            assert each.wait("30s").status == "success"
        waiting = client.transactions.start("approval", {"n": 2})
        gone = client.transactions.start("approval", {"n": 3})
        with store_access(quick) as access:
            ingest = ingest_job(spark, Lake(str(lake)), access).run

            def run(meanwhile: Any = None) -> Findings:
                archive = archive_place("", folder=quick.data_dir)
                with SlowLive(access.resolve(), archive) as live:
                    live.meanwhile = meanwhile
                    return audit(
                        spark,
                        Lake(str(lake)),
                        live=live,
                        ingest=ingest,
                        archived_before_ms=Clock().now_ms(),
                    )

            def approve() -> None:
                client.transactions.set_switch(waiting.id, "ok", True)
                assert waiting.wait("30s").status == "success"

            # One ends while the audit is under way: its end is in what is read afterwards
            clean = run(approve)
            assert (clean.counts, clean.examples) == ({}, [])
            assert clean.checked["transactions"] == 6
            assert "t.default.secrets.0: 3 not recorded, as its topic says." in clean.notes
            assert (
                "Pipeline default/discreet: steps and data of 1 transactions not recorded, as it"
                " says."
            ) in clean.notes

            # When the end of one is deleted from the lake, the start of another, one is gone from
            # the store, and one from the archive
            changes = DeltaTable(str(lake / "transactions"))
            changes.delete(f"transaction_id = '{done.id}' and kind <> 'started'")
            changes = DeltaTable(str(lake / "transactions"))
            changes.delete(f"transaction_id = '{other.id}' and kind = 'started'")
            for each in (third, gone):
                lose(access.resolve(), quick.data_dir, each.id)
            planted = run()
            # An archive may delete ended transactions, once that is recorded
            with LogWriter(access.resolve()) as writer:
                pruned = OperationRecord(kind="prune", detail={"before_ms": Clock().now_ms()})
                writer.create("operations")
                writer.append_raw("operations", [msgspec.msgpack.encode(pruned)])
            assert ("archive", third.id) not in {(each.check, each.id) for each in run().examples}

    found = {(each.check, each.id) for each in planted.examples}
    assert {
        ("lost", done.id),
        ("no start", other.id),
        ("unknown transaction", other.id),
        ("lost", gone.id),
        ("archive", third.id),
    } <= found
    assert {check for check, _ in found} <= {
        "lost", "no start", "unknown transaction", "archive", "missing", "items",
    }  # fmt: skip


def until_archived(url: str, folder: Path, ids: Sequence[str]) -> None:
    """Wait until the archive has all transactions in the versions of the store."""

    def are_archived() -> bool:
        heads, kept = live.heads(ids), live.archived(ids)
        return all(
            each in kept and (each not in heads or kept[each].version == heads[each].version)
            for each in ids
        )

    with Live(url, archive_place("", folder=folder)) as live:
        eventually_sync(are_archived)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_began_or_ended_twice_fell_back_or_is_otherwise_in_the_archive_is_found_by_its_id(
    spark: SparkSession, settings: Config, lake: Path
) -> None:
    quick = msgspec.structs.replace(
        settings, transactions=TransactionConfig(archive_delay_seconds=0.0)
    )
    with background_station(quick, app=app()) as station, Waystation(station.url) as client:
        started = [client.transactions.start("approval", {"n": n}) for n in range(7)]
        for each in started:
            client.transactions.set_switch(each.id, "ok", True)
            assert each.wait("30s").status == "success"
        ids = [each.id for each in started]
        well, failed, older, gone, begun, ended, fell = ids
        with store_access(quick) as access:
            until_archived(access.resolve(), quick.data_dir, ids)

    # No node archives any more, so planted errors stay
    with store_access(quick) as access:
        ingest = ingest_job(spark, Lake(str(lake)), access).run

        def run() -> Findings:
            with Live(access.resolve(), archive_place("", folder=quick.data_dir)) as live:
                return audit(
                    spark,
                    Lake(str(lake)),
                    live=live,
                    ingest=ingest,
                    archived_before_ms=Clock().now_ms(),
                )

        clean = run()
        assert (clean.counts, clean.examples) == ({}, [])
        assert clean.checked["transactions"] == 7

        with closing(sqlite3.connect(quick.data_dir / "archive.db", timeout=30)) as archive:
            archive.execute("UPDATE state SET status = 'failed' WHERE id = ?", (failed,))
            archive.execute("UPDATE state SET version = version - 1 WHERE id = ?", (older,))
            archive.execute("DELETE FROM state WHERE id = ?", (gone,))
            archive.commit()
        with LogWriter(access.resolve()) as writer:
            writer.command("DEL", *(names.state(each) for each in (failed, older, gone)))
        changes = DeltaTable(str(lake / "transactions"))
        # The first change after the start, which is not the end.
        second = "status is null and kind <> 'started'"
        for transaction_id, update in (
            (begun, {"kind": "'started'"}),
            (ended, {"status": "'success'"}),
        ):
            changed = changes.update(
                predicate=f"transaction_id = '{transaction_id}' and {second}", updates=update
            )
            assert changed["num_updated_rows"] > 0
        changes.update(
            predicate=f"transaction_id = '{fell}' and kind = 'started'",
            updates={"version": "version + 1000"},
        )
        planted = run()

        # A transaction that was erased from the archive is no finding, once that is recorded
        with LogWriter(access.resolve()) as writer:
            erased = OperationRecord(kind="erase", subject=gone)
            writer.create("operations")
            writer.append_raw("operations", [msgspec.msgpack.encode(erased)])
        later = run()

    found = {(each.check, each.id): each.text for each in planted.examples}
    assert found.keys() == {
        ("archive", failed),
        ("archive", older),
        ("archive", gone),
        ("started twice", begun),
        ("ended twice", ended),
        ("version fell", fell),
    }
    assert planted.counts == {"archive": 3, "started twice": 1, "ended twice": 1, "version fell": 1}
    assert "is failed there" in found["archive", failed]
    assert "is success there" in found["archive", older]
    assert "is not in the archive" in found["archive", gone]
    assert {(each.check, each.id) for each in later.examples} == found.keys() - {("archive", gone)}
    assert well not in {each.id for each in planted.examples}
