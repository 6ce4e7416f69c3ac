"""The lake in Spark: tables by name, exactly the committed rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.history.log_writer import LogWriter, envelopes
from waystation.errors import LakeDamagedError, LakeRefusedError
from waystation.history import attach
from waystation.history.ingest.job import Ingest
from waystation.history.lake.schema import MESSAGES
from waystation.history.lake.table import Lake, LakeTable
from waystation.history.sources.options import StorePlace

ORDERS = "t.default.orders.0"


class DeathError(Exception):
    """The process dies here."""


def test_tables_have_what_was_committed_and_are_a_snapshot(
    spark: SparkSession,
    writer: LogWriter,
    store_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake = tmp_path / "a lake"
    ingest = Ingest(spark, Lake(str(lake)), StorePlace(store_url))
    writer.create(ORDERS, 2)
    writer.append(ORDERS, envelopes(4, group="g"), 1)

    def dies(table: LakeTable, *given: Any) -> None:
        raise DeathError

    # Given files that no commit knows of
    with monkeypatch.context() as patch:
        patch.setattr(LakeTable, "commit", dies)
        with pytest.raises(DeathError):
            ingest.run()
    ingest.run()

    assert attach(spark, lake=str(lake)) is spark

    found = spark.sql(
        """select topic, partition, count(*) n, min(position) first, count(distinct day) days
           from waystation.messages where group = 'g' group by 1, 2"""
    ).collect()
    assert [tuple(row) for row in found] == [("orders", 1, 4, "default/orders/0/1/0", 1)]
    # Tables that nothing was brought into are empty, and have their columns
    joined = "select * from waystation.messages join waystation.steps using (log_offset)"
    assert spark.sql(joined).collect() == []
    assert "from_offset" in spark.table("waystation.gaps").columns

    # What comes later is seen by who attaches again
    writer.append(ORDERS, envelopes(3, first=10), 0)
    ingest.run()
    assert spark.table("waystation.messages").count() == 4
    attach(spark, lake=str(lake))
    assert spark.table("waystation.messages").count() == 7
    assert spark.table("waystation.messages_all").count() == 7

    # A file that was cut is told before a query fails in the midst of it
    file = lake / "messages" / Lake(str(lake)).open(MESSAGES).files()[0]
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(LakeDamagedError, match=f"messages: .*{file.name} has 100 bytes"):
        attach(spark, lake=str(lake))


def test_what_is_no_lake_is_told(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(LakeRefusedError, match="There is no lake at"):
        attach(spark, lake=str(tmp_path / "none"))
    with pytest.raises(LakeRefusedError, match="reads as a pattern"):
        attach(spark, lake=str(tmp_path / "it's"))
