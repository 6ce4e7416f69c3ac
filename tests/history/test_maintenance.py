"""Maintenance: few files with the same rows, vacuum, and tables that get new columns."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from waystation.history import attach
from waystation.history.decoders.messages import moments
from waystation.history.lake.files import TableWriter
from waystation.history.lake.maintenance import maintain
from waystation.history.lake.schema import DELIVERIES, MESSAGES, TableSchema
from waystation.history.lake.table import Lake, TableOffset

DAY_MS = 86_400_000
FIRST_MS = 1_767_312_000_000


def row(spec: TableSchema, offset: int, ms: int) -> dict[str, Any]:
    """Return a row that has a value in every column."""
    kinds: dict[Any, Any] = {
        pa.string(): f"{spec.name} {offset}",
        pa.binary(): b"payload %d" % offset,
        pa.int32(): offset,
        pa.int64(): offset,
        pa.bool_(): False,
    }
    moment = moments([ms])[0].as_py()
    return {field.name: kinds.get(field.type, moment) for field in spec.file_schema} | (
        {"headers": [{"name": "h", "value": str(offset)}]} if spec.name == MESSAGES.name else {}
    )


def fill(lake: Lake, spec: TableSchema, *, days: int, each: int, first: int = 0) -> None:
    """Commit files one by one, `each` for every day; the offset counts them."""
    for number in range(first, first + days * each):
        writer = TableWriter(lake.folder(spec), spec)
        ms = FIRST_MS + (number - first) // each * DAY_MS
        writer.write(pa.RecordBatch.from_pylist([row(spec, number, ms)], spec.file_schema))
        lake.open(spec).commit(writer.close(), {"ds/log/0": TableOffset(number + 1, number)})


def files(lake: Lake, spec: TableSchema) -> int:
    return len(lake.open(spec).files())


def rows(lake: Lake, spec: TableSchema) -> list[dict[str, Any]]:
    found = DeltaTable(lake.folder(spec)).to_pyarrow_table().sort_by("log_offset").to_pylist()
    return list(found)


@pytest.mark.slow
@pytest.mark.parametrize("spec", [MESSAGES, DELIVERIES], ids=lambda spec: spec.name)
def test_many_files_become_few_with_the_same_rows_and_marks(lake: Path, spec: TableSchema) -> None:
    where = Lake(str(lake))
    fill(where, spec, days=3, each=10)
    before = rows(where, spec)
    assert files(where, spec) == 30

    done = maintain(where.folder(spec), FIRST_MS)

    # The newest day gets more all the time: that one waits
    assert (done.compacted, done.files, files(where, spec)) == (20, 12, 12)
    assert rows(where, spec) == before
    assert where.open(spec).offset("ds/log/0") == TableOffset(30, 29)
    assert maintain(where.folder(spec), FIRST_MS).compacted == 0
    # A filter on any column finds the same rows in old files and in new ones
    fill(where, spec, days=1, each=1, first=30)
    table = DeltaTable(where.folder(spec)).to_pyarrow_dataset()
    for name, value in before[5].items():
        if name != "headers":
            same = sum(each[name] == value for each in rows(where, spec))
            assert table.count_rows(filter=ds.field(name) == value) == same, name


@pytest.mark.slow
def test_a_table_with_many_days_has_a_file_for_each_of_them(lake: Path) -> None:
    where = Lake(str(lake))
    fill(where, MESSAGES, days=67, each=3)
    assert files(where, MESSAGES) == 201
    assert maintain(where.folder(MESSAGES), FIRST_MS).files == 66 + 3


def test_a_writer_and_a_reader_are_not_disturbed(lake: Path) -> None:
    where = Lake(str(lake))
    fill(where, MESSAGES, days=2, each=10)
    reader, writer = DeltaTable(where.folder(MESSAGES)), where.open(MESSAGES)
    maintain(where.folder(MESSAGES), FIRST_MS)
    assert reader.to_pyarrow_table().num_rows == 20
    files_ = TableWriter(where.folder(MESSAGES), MESSAGES)
    one = row(MESSAGES, 20, FIRST_MS)
    files_.write(pa.RecordBatch.from_pylist([one], MESSAGES.file_schema))
    writer.commit(files_.close(), {"ds/log/0": TableOffset(21, 1)})
    assert len(rows(where, MESSAGES)) == 21


def test_files_that_belong_to_nothing_are_deleted_when_they_are_old(lake: Path) -> None:
    where = Lake(str(lake))
    fill(where, MESSAGES, days=1, each=2)
    for name in ("old", "new"):
        writer = TableWriter(where.folder(MESSAGES), MESSAGES)
        one = row(MESSAGES, 9, FIRST_MS)
        writer.write(pa.RecordBatch.from_pylist([one], MESSAGES.file_schema))
        (orphan,) = writer.close()
        path = lake / "messages" / orphan.path
        if name == "old":
            hours_ago = path.stat().st_mtime - 3 * 3600
            os.utime(path, (hours_ago, hours_ago))
    now_ms = 10 * FIRST_MS

    assert maintain(where.folder(MESSAGES), now_ms, vacuum_hours=2).deleted == 1
    assert len(list((lake / "messages").glob("day=*/*/*.parquet"))) == 3
    assert len(rows(where, MESSAGES)) == 2
    # Once a day: to list all files may take a while
    assert maintain(where.folder(MESSAGES), now_ms + 1000, vacuum_hours=2).deleted == 0


def test_a_table_that_cannot_be_tidied_stays_as_it_is(lake: Path) -> None:
    where = Lake(str(lake))
    fill(where, MESSAGES, days=2, each=10)
    damaged = lake / "messages" / min(where.open(MESSAGES).files())
    damaged.write_bytes(bytes(damaged.stat().st_size))
    assert maintain(where.folder(MESSAGES), FIRST_MS).compacted == 0
    assert files(where, MESSAGES) == 20
    assert maintain(str(lake / "nothing"), FIRST_MS).files == 0


def test_a_column_that_came_later_is_null_in_what_is_older(lake: Path, spark: SparkSession) -> None:
    older = TableSchema(
        "messages",
        pa.schema([field for field in MESSAGES.schema if field.name not in {"cause", "size"}]),
    )
    where = Lake(str(lake))
    fill(where, older, days=1, each=2)

    # The first that this release does is to open it; nothing was written with the column yet
    where.open(MESSAGES)
    attach(spark, lake=str(lake))
    assert spark.sql("select count(*), count(cause) from waystation.messages").first() == (2, 0)
    fill(where, MESSAGES, days=1, each=1, first=2)

    attach(spark, lake=str(lake))
    read = spark.sql("select cause, size from waystation.messages order by log_offset").collect()
    assert [tuple(each) for each in read] == [(None, None), (None, None), ("messages 2", 2)]
    found = rows(where, MESSAGES)
    assert [each["cause"] for each in found] == [None, None, "messages 2"]
    assert where.open(MESSAGES).offset("ds/log/0") == TableOffset(3, 2)
    # A release that does not know it reads and writes without it
    fill(where, older, days=1, each=1, first=3)
    assert [each["size"] for each in rows(where, MESSAGES)] == [None, None, 2, None]


def test_deltalake_duckdb_and_polars_read_the_same(lake: Path) -> None:
    where = Lake(str(lake))
    fill(where, MESSAGES, days=2, each=10)
    maintain(where.folder(MESSAGES), FIRST_MS)
    fill(where, MESSAGES, days=1, each=1, first=20)
    folder = where.folder(MESSAGES)
    plain = DeltaTable(folder).to_pyarrow_table(columns=["log_offset", "payload", "day"])
    expected = plain.sort_by("log_offset").to_pylist()
    assert len(expected) == 21

    messages = DeltaTable(folder).to_pyarrow_dataset()  # noqa: F841 (DuckDB finds it by its name)
    by_duck = duckdb.sql(
        "select log_offset, payload, day from messages where day >= date '2026-01-01'"
        " and payload is not null order by 1"
    ).fetchall()
    assert by_duck == [tuple(each.values()) for each in expected]
    assert duckdb.sql("select count(*) from messages where log_offset = 7").fetchall() == [(1,)]

    lazily = pl.scan_delta(folder)
    by_bear = lazily.select("log_offset", "payload", "day").sort("log_offset").collect()
    assert by_bear.to_dicts() == expected
    some = lazily.filter(pl.col("id") == "messages 7").select("offset").collect()
    assert some.to_dicts() == [{"offset": 7}]
