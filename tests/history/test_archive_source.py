"""The source `waystation.archive` on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, spark_partition_id, unix_millis

from tests.archive.conformance import archived
from tests.helpers.postgres import PASSWORD, PostgresServer
from waystation.archive import ArchivedState, archive_at
from waystation.archive.scan import ArchiveScan, Condition, IdRange
from waystation.errors import ArchiveUnavailableError, SourceOptionError
from waystation.history.sources.options import ArchiveOptions

STATUSES = ("success", "failed", "sleeping")


def states(count: int) -> list[ArchivedState]:
    return [
        archived(
            f"tx-{number:04}",
            owner="shop" if number % 2 else "default",
            status=STATUSES[number % 3],
            external_id="" if number else "invoice-1",
            completed_ms=0 if number % 3 == 2 else 1_800_000_000_000 + number,
        )
        for number in range(count)
    ]


def fill(url: str, folder: Path, some: Sequence[ArchivedState]) -> None:
    async def write() -> None:
        archive = archive_at(url, folder=folder)
        await archive.open()
        try:
            await archive.upsert(some)
        finally:
            await archive.close()

    asyncio.run(write())


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the location of an archive with thirty transactions."""
    url = ""
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.url(server.empty_database())
    fill(url, tmp_path, states(30))
    return url or str(tmp_path / "archive.db")


def read(spark: SparkSession, place: str, **options: str) -> DataFrame:
    return spark.read.format("waystation.archive").options(archive=place, **options).load()


@pytest.mark.timeout(240)
def test_archive_source_reads_each_transaction_once_and_pushes_filters_down(
    spark: SparkSession, place: str
) -> None:
    found = read(spark, place, partition_rows="7")
    task = spark_partition_id().alias("task")

    seen = found.select("*", task, unix_millis("completed").alias("completed_ms"))
    rows = sorted(seen.collect(), key=lambda row: row.id)

    assert [row.id for row in rows] == [each.id for each in states(30)]
    assert [row.task for row in rows] == [number // 7 for number in range(30)]
    first, kept = rows[0].asDict(), states(30)[0]
    assert {name: first[name] for name in ("project", "external_id", "status", "version")} == {
        "project": "default",
        "external_id": "invoice-1",
        "status": "success",
        "version": kept.version,
    }
    assert (bytes(first["state"]), bytes(first["fields"])) == (kept.packed, kept.fields)
    assert (rows[1].external_id, rows[1].completed_ms) == (None, 1_800_000_000_001)
    assert rows[2].completed is None

    # Spark pushes the filters to the database: the rest fits into one range
    shop = found.where((col("status") == "failed") & col("project").isin("shop"))
    some = shop.select("id", task).collect()
    assert {row.id for row in some} == {
        each.id for each in states(30) if (each.owner, each.status) == ("shop", "failed")
    }
    assert {row.task for row in some} == {0}


@pytest.mark.spark_oldest
@pytest.mark.timeout(120)
def test_archive_source_in_session_that_does_not_register_it_leaves_filters_to_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    fill("", tmp_path, states(30))
    place = str(tmp_path / "archive.db")
    plain = spark.newSession()
    plain.conf.unset("spark.sql.python.filterPushdown.enabled")
    found = read(plain, place, partition_rows="7").where("status = 'failed'")
    tasks = [row.task for row in found.select(spark_partition_id().alias("task")).collect()]
    assert (len(tasks), len(set(tasks))) == (10, 5)


@pytest.mark.timeout(120)
def test_archive_source_with_archive_file_shows_no_password_in_the_plan(
    spark: SparkSession, postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.loopback_url(postgres.empty_database())
    fill(url, tmp_path, states(3))
    (tmp_path / "url").write_text(url)
    reader = spark.read.format("waystation.archive").option("archive_file", str(tmp_path / "url"))

    found = reader.load()

    assert found.count() == 3
    plan = found._jdf.queryExecution().toString()
    assert "archive_file" in plan or "waystation.archive" in plan
    assert PASSWORD not in plan
    with pytest.raises(PySparkException, match="password of the archive must not be in an option"):
        read(spark, url)


def test_archive_scan_reads_ranges_page_by_page(tmp_path: Path) -> None:
    fill("", tmp_path, states(4_100))
    with ArchiveScan(str(tmp_path / "archive.db")) as scan:
        pages = list(scan.pages(IdRange("tx-0001", "tx-4099"), ()))
        few = scan.ranges([Condition("status", "=", ("failed",))], rows=1_000, most=8)
        most = scan.ranges((), rows=1, most=4)
    assert [len(page) for page in pages] == [4_096, 2]
    assert (pages[0][0][0], pages[1][-1][0]) == ("tx-0001", "tx-4098")
    # 1,367 of them: two ranges, that leave nothing out
    assert [few[0].first, few[0].end, few[1].end] == ["", few[1].first, None]
    # However many there are, there are no more ranges than that
    assert [each.first for each in most] == ["", "tx-1025", "tx-2050", "tx-3075"]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"path": "/x"}, "path"),
        ({"archive": "archive.db"}, "archive"),
        ({"archive": "postgresql://me:secret@db/x"}, "archive"),
        ({"archive": "postgresql://me@db/x?password=secret"}, "archive"),
        ({"archive": "/x", "archive_file": "/y"}, "archive"),
        ({"archive_file": "y"}, "archive_file"),
        ({"partition_rows": "0"}, "partition_rows"),
        ({"partitions_max": "many"}, "partitions_max"),
        ({"pushdown": "false"}, "pushdown"),
    ],
)
def test_archive_source_with_invalid_option_names_it(options: dict[str, str], field: str) -> None:
    with pytest.raises(SourceOptionError) as caught:
        ArchiveOptions.parse(options)
    assert caught.value.field == field
    assert "secret" not in str(caught.value)


def test_archive_location_resolves_option_file_or_environment(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("postgresql://me@db/x\n")

    def find(environment: dict[str, str], **options: str) -> str:
        return ArchiveOptions.parse(options).location.resolve(environment)

    assert find({}, archive="/data/archive.db") == "/data/archive.db"
    assert find({}, archive_file=str(tmp_path / "url")) == "postgresql://me@db/x"
    by_file: dict[str, Any] = {"WAYSTATION_ARCHIVE_URL_FILE": str(tmp_path / "url")}
    assert find(by_file) == "postgresql://me@db/x"
    assert find({"WAYSTATION_ARCHIVE_URL": "postgresql://db/y"}) == "postgresql://db/y"
    with pytest.raises(SourceOptionError, match="No option names the archive"):
        find({})
    with pytest.raises(SourceOptionError, match="cannot be read"):
        find({}, archive_file=str(tmp_path / "none"))


def test_archive_scan_of_another_database_reports_archive_unavailable(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    (tmp_path / "empty.db").touch()
    database = postgres.empty_database()
    for place in (
        str(tmp_path / "none.db"),
        str(tmp_path / "empty.db"),
        postgres.url(database),
        postgres.loopback_url(database, password="wrong-one"),
    ):
        with pytest.raises(ArchiveUnavailableError) as caught, ArchiveScan(place) as scan:
            scan.ranges((), rows=10, most=2)
        assert "wrong-one" not in str(caught.value)
