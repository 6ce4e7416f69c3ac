"""Views of `attach`: tables by name, with exactly the committed rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.history.log_writer import LogWriter, envelopes
from tests.history.test_archive_source import fill, states
from waystation.errors import LakeDamagedError, LakeRefusedError
from waystation.history import attach
from waystation.history.ingest.job import ingest_job
from waystation.history.lake.schema import MESSAGES
from waystation.history.lake.table import Lake, LakeTable
from waystation.history.sources.options import Location

ORDERS = "t.default.orders.0"
#: A user's program: a session without settings that exists before our package is imported.
PLAIN_SESSION = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
zone = spark.conf.get("spark.sql.session.timeZone")

from waystation.history import attach
attach(spark, lake=LAKE)

read = spark.read.format("waystation").option("store", STORE)
topic = read.option("topic", "orders").option("partition_rows", "10").load()
stream = (
    spark.readStream.format("waystation").option("store", STORE).option("topic", "orders").load()
    .writeStream.format("memory").queryName("seen").trigger(availableNow=True).start()
)
stream.awaitTermination()
some = topic.where("partition = 1 and offset >= 25")
archive = spark.read.format("waystation.archive").option("archive", ARCHIVE).load()
print(json.dumps({
    "lake": spark.table("waystation.messages").count(),
    "topic": topic.count(),
    "stream": spark.table("seen").count(),
    "some": [some.count(), some.rdd.getNumPartitions()],
    "archive": archive.where("status = 'failed'").count(),
    "zone": spark.conf.get("spark.sql.session.timeZone") == zone,
}))
"""
#: The same user without `attach`.
NO_ATTACH = """
import waystation.history
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
read = spark.read.format("waystation").option("store", STORE)
topic = read.option("topic", "orders").load()
archive = spark.read.format("waystation.archive").option("archive", ARCHIVE).load()
print(json.dumps([
    topic.where("partition = 1 and offset >= 25").count(),
    archive.where("status = 'failed'").count(),
]))
"""


def run_as_user(folder: Path, code: str, **names: str) -> Any:
    """Run a program in a new process without our settings; return what it prints."""
    given = "".join(f"{name} = {value!r}\n" for name, value in names.items())
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("WAYSTATION", "PYSPARK", "SPARK"))
    }
    ran = subprocess.run(
        [sys.executable, "-c", f"import json\n{given}{code}"],
        cwd=folder,
        # `python3` of this path does not have our packages.
        env={**environment, "PATH": "/usr/local/bin:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


class DeathError(Exception):
    """Simulated crash of the process."""


@pytest.mark.spark_oldest
def test_tables_have_what_was_committed(
    spark: SparkSession,
    writer: LogWriter,
    store_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake = tmp_path / "a lake"
    ingest = ingest_job(spark, Lake(str(lake)), Location(store_url))
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

    writer.append(ORDERS, envelopes(3, first=10), 0)
    ingest.run()
    assert spark.table("waystation.messages").count() == 7
    assert spark.table("waystation.messages_all").count() == 7

    # A cut file is reported before a query fails in the middle of it
    file = lake / "messages" / Lake(str(lake)).open(MESSAGES).files()[0]
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(LakeDamagedError, match=f"messages: .*{file.name} has 100 bytes"):
        attach(spark, lake=str(lake))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_attach_and_sources_in_plain_session_need_no_configuration(
    spark: SparkSession, writer: LogWriter, store_url: str, tmp_path: Path
) -> None:
    writer.create(ORDERS, 2)
    writer.append(ORDERS, envelopes(30), 0)
    writer.append(ORDERS, envelopes(30, first=30), 1)
    ingest_job(spark, Lake(str(tmp_path / "lake")), Location(store_url)).run()
    archive = str(tmp_path / "archive.db")
    fill("", tmp_path, states(30))
    failed = sum(state.status == "failed" for state in states(30))
    given = {"LAKE": str(tmp_path / "lake"), "STORE": store_url, "ARCHIVE": archive}

    attached = run_as_user(tmp_path, PLAIN_SESSION, **given)
    plain = run_as_user(tmp_path, NO_ATTACH, **given)

    # Filters were pushed down: Spark planned one task for 5 messages instead of 6 tasks for 60
    assert attached == {
        "lake": 60,
        "topic": 60,
        "stream": 60,
        "some": [5, 1],
        "archive": failed,
        "zone": True,
    }
    assert plain == [5, failed]


def test_what_is_no_lake_is_told(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(LakeRefusedError, match="There is no lake at"):
        attach(spark, lake=str(tmp_path / "none"))
    with pytest.raises(LakeRefusedError, match="reads as a pattern"):
        attach(spark, lake=str(tmp_path / "it's"))
