"""The audit: what was planted is found by its id, and nothing else is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from tests.history import shard_story
from tests.history.log_writer import LogWriter, envelopes
from waystation.history.audit import Findings, Live, audit
from waystation.history.ingest import Ingest
from waystation.history.lake import Lake
from waystation.history.options import StorePlace

ORDERS, NOTES, TORN = "t.default.orders.0", "t.default.notes.0", "t.default.torn.0"


@pytest.fixture
def told(spark: SparkSession, writer: LogWriter, store_url: str, lake: Path) -> Any:
    """A lake with twenty messages and what a subscription made of them; audits it."""
    ingest = Ingest(spark, Lake(str(lake)), StorePlace(store_url)).run
    # A store that was restored from a backup, and has given two offsets anew
    writer.create(TORN)
    writer.append(TORN, envelopes(4))
    backup = writer.backup()
    writer.append(TORN, envelopes(3, first=4))
    ingest()
    writer.restore(backup)
    writer.append(TORN, envelopes(2, first=10))
    writer.create(ORDERS)
    for number in range(20):
        writer.append(ORDERS, envelopes(1, first=number, group="ab"[number % 2]))
    shard_story.write(writer)
    # And a log of which some was gone before it was read
    writer.create(NOTES)
    writer.append(NOTES, envelopes(30))
    assert writer.trim_to(NOTES, 500) > 0
    ingest()

    def run() -> Findings:
        with Live(store_url) as live:
            return audit(spark, Lake(str(lake)), live=live, ingest=ingest)

    return run


def found(findings: Findings) -> set[tuple[str, str]]:
    return {(each.check, each.id) for each in findings.examples}


def double(lake: Path, table: str, predicate: str) -> None:
    """Brings a row into a table once more."""
    opened = DeltaTable(str(lake / table))
    rows = opened.to_pyarrow_table()
    name, _, value = predicate.partition(" = ")
    write_deltalake(opened, rows.filter(pc.field(name) == value), mode="append")


@pytest.mark.timeout(240)
def test_one_deleted_one_doubled_and_one_overtaken_message_are_found_by_their_ids(
    told: Any, writer: LogWriter, lake: Path
) -> None:
    clean = told()

    assert (clean.counts, clean.examples) == ({}, [])
    (gone,) = [note for note in clean.notes if "gone before it was read" in note]
    trimmed = int(gone.split()[1])
    (lost,) = [note for note in clean.notes if "lost by the store" in note]
    assert lost.startswith(f"{TORN}: 3 ")
    assert clean.checked["entries of messages"] == 20 + 30 - trimmed + 6
    assert clean.checked["entries of deliveries"] == len(shard_story.HOPS)
    # Two were before its start, and one was passed over
    assert clean.checked["messages of subscriptions"] == 17

    # When one is deleted, one is doubled, and one was attempted before that before it had settled
    DeltaTable(str(lake / "messages")).delete("id = 'm-6'")
    double(lake, "messages", "id = m-8")
    DeltaTable(str(lake / "deliveries")).update(
        predicate="message_id = 'm-9' and kind = 'attempt'", updates={"begun_after": "2"}
    )
    # And the records of two are gone, both acknowledged, and one from retry
    DeltaTable(str(lake / "deliveries")).delete("message_id in ('m-15', 'm-18')")
    writer.command("HDEL", f"{shard_story.TAG}retry", 3)

    planted = told()

    assert found(planted) == {
        ("missing", "m-6"),
        ("unknown message", "m-6"),
        ("doubled", "m-8"),
        ("overtaken", "m-7"),
        ("missing", ""),
        ("lost", "m-15"),
        ("lost", "m-17"),
        ("lost", "m-18"),
        ("overtaken", "m-15"),
    }
    assert planted.counts == {
        "missing": 3, "unknown message": 1, "doubled": 1, "overtaken": 2, "lost": 3,
    }  # fmt: skip
