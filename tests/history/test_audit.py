"""Audit of a planted lake: it finds each planted error by its id, and no other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from tests.history import shard_story
from tests.history.lake_check import gaps_of
from tests.history.log_writer import LogWriter, envelopes
from waystation.archive import SqliteArchive, archive_place
from waystation.errors import ArchiveForeignError, ArchiveUnavailableError
from waystation.history.audit import Findings, Live, audit
from waystation.history.ingest.job import ingest_job
from waystation.history.lake.table import Lake
from waystation.history.sources.options import Location
from waystation.logs.operations import OperationRecord
from waystation.messages.envelope import Envelope
from waystation.runtime.clock import Clock
from waystation.store.keys import FORMAT
from waystation.topics.keys import definition_key
from waystation.topics.model import StorageTopicDefinition, TopicDefinition, encode_topic
from waystation.types.topic import TopicOptions

ORDERS, NOTES, TORN = "t.default.orders.0", "t.default.notes.0", "t.default.torn.0"


@pytest.fixture
def told(spark: SparkSession, writer: LogWriter, store_url: str, lake: Path) -> Any:
    """Return a function that audits a lake with twenty messages and their deliveries."""
    ingest = ingest_job(spark, Lake(str(lake)), Location(store_url)).run
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
    writer.create("operations")
    erased = [OperationRecord(kind="erase", subject=f"tx-{number}") for number in range(3)]
    writer.append_raw("operations", [msgspec.msgpack.encode(each) for each in erased])
    ingest()

    def run() -> Findings:
        with Live(store_url) as live:
            return audit(spark, Lake(str(lake)), live=live, ingest=ingest)

    return run


def received(offset: int, number: int, *, status: int, receipt: str) -> dict[str, Any]:
    """The hop of message `m-<number>` at an offset that a receiver of our own answered."""
    hop = shard_story.hop_row(100 + offset, "attempt", f"m0.0.{offset}", "-", 1, number, "park")
    return {
        **hop,
        "endpoint": "channel:default.news",
        "status": status,
        "excerpt": receipt.encode(),
        "position": f"default/orders/0/0/{offset}",
    }


@pytest.mark.timeout(240)
def test_audit_given_a_delivery_answered_as_repetition_of_another_message_reports_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    rows = [
        {**shard_story.hop_row(0, "start", "m0.0.0", "m0.0.0", 0, None, "park")},
        # Two messages with one id: the channel has the first alone
        received(1, 7, status=200, receipt="41"),
        received(2, 7, status=208, receipt="41"),
        # A repetition of a message whose first delivery was not recorded, and of one whose was
        received(3, 8, status=208, receipt="42"),
        received(4, 9, status=200, receipt="43"),
        {**received(4, 9, status=208, receipt="43"), "log_offset": 120},
        # A channel that counts anew gives one receipt to two messages
        received(5, 10, status=200, receipt="44"),
        received(6, 11, status=208, receipt="44"),
    ]
    shard_story.commit(spark, lake, rows)

    findings = audit(spark, Lake(str(lake)), live=None, ingest=None)

    assert [each.position for each in findings.examples if each.check == "swallowed"] == [
        "default/orders/0/0/2"
    ]
    assert findings.counts["swallowed"] == 1


def found(findings: Findings) -> set[tuple[str, str]]:
    return {(each.check, each.id) for each in findings.examples}


def double(lake: Path, table: str, predicate: str) -> None:
    """Append a copy of a row to a table."""
    opened = DeltaTable(str(lake / table))
    rows = opened.to_pyarrow_table()
    name, _, value = predicate.partition(" = ")
    write_deltalake(opened, rows.filter(pc.field(name) == value), mode="append")


@pytest.mark.spark_oldest
@pytest.mark.timeout(480)
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
    assert clean.checked["entries of operations"] == 3
    # Two were before its start, and one was passed over
    assert clean.checked["messages of subscriptions"] == 17

    # When one is deleted, one is doubled, and one was attempted before that before it had settled
    DeltaTable(str(lake / "messages")).delete("id = 'm-6'")
    double(lake, "messages", "id = m-8")
    DeltaTable(str(lake / "deliveries")).update(
        predicate="message_id = 'm-9' and kind = 'attempt'", updates={"begun_after": "2"}
    )
    DeltaTable(str(lake / "operations")).delete("log_offset = 1")
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
        "missing": 4, "unknown message": 1, "doubled": 1, "overtaken": 2, "lost": 3,
    }  # fmt: skip


def define(writer: LogWriter, topic: TopicDefinition) -> None:
    """Write the working copy of a topic, as a node does."""
    writer.command("HSET", definition_key(topic.project, topic.name), "body", encode_topic(topic))


def event(source: str) -> Envelope:
    headers = (("ce-specversion", "1.0"), ("ce-id", "m%2D1"), ("ce-source", source))
    return Envelope(id="m-1", project="default", data=b"{}", headers=headers)


@pytest.mark.spark_oldest
@pytest.mark.timeout(240)
def test_audit_of_a_deduplicated_topic_finds_an_id_that_is_there_twice(
    spark: SparkSession, writer: LogWriter, store_url: str, lake: Path
) -> None:
    plain = TopicDefinition(
        project="default",
        name="orders",
        version=1,
        options=TopicOptions(dedup_seconds=3600),
        storage=(
            StorageTopicDefinition(number=0, partitions=1),
            StorageTopicDefinition(number=1, partitions=1),
        ),
    )
    define(writer, plain)
    free = msgspec.structs.replace(plain, name="notes", options=TopicOptions())
    define(writer, free)
    for log in (ORDERS, "t.default.orders.1", NOTES):
        writer.create(log)
    # Given ids that differ by their group or by their source, and any id in a topic that allows it
    writer.append(ORDERS, [*envelopes(3), *envelopes(3, group="g"), event("/a"), event("/b")])
    writer.append(NOTES, [*envelopes(3), *envelopes(3)])

    def run() -> Findings:
        with Live(store_url) as live:
            return audit(
                spark,
                Lake(str(lake)),
                live=live,
                ingest=ingest_job(spark, Lake(str(lake)), Location(store_url)).run,
            )

    assert run().counts == {}

    # When two are there once more, one of them in the next storage topic
    writer.append(ORDERS, [event("/b")])
    writer.append("t.default.orders.1", envelopes(1, first=2, group="g"))
    findings = run()
    assert findings.counts == {"repeated id": 2}
    assert {(each.id, each.position) for each in findings.examples} == {
        ("m-1", "default/orders/0/0/8"),
        ("m-2", "default/orders/1/0/0"),
    }

    # And not where the topic began to count ids only afterwards
    define(writer, plain.with_options(TopicOptions(dedup_seconds=60), now_ms=Clock().now_ms()))
    assert run().counts == {}


def test_live_without_the_archive_of_its_data_set_is_refused_and_creates_nothing(
    writer: LogWriter, store_url: str, tmp_path: Path
) -> None:
    place = archive_place("", folder=tmp_path / "data")
    with Live(store_url, place) as live:
        assert not live.has_archive, "no node has opened one yet"

    writer.command("HSET", FORMAT, "archive", "ar-1")
    with pytest.raises(ArchiveUnavailableError, match="in the archive ar-1"):
        Live(store_url, place)
    assert not (tmp_path / "data").exists()

    async def create() -> str:
        other = SqliteArchive(Path(place))
        await other.open()
        try:
            return await other.identity()
        finally:
            await other.close()

    name = asyncio.run(create())
    with pytest.raises(ArchiveForeignError, match=f"this one is {name}"):
        Live(store_url, place)
    writer.command("HSET", FORMAT, "archive", name)
    with Live(store_url, place) as live:
        assert live.has_archive
        assert live.archived(["tx-1", "tx-2\x00"]) == {}


@pytest.mark.timeout(240)
def test_audit_after_an_accepted_store_loss_names_the_lost_data_set_once(
    spark: SparkSession, writer: LogWriter, store_url: str, lake: Path
) -> None:
    def ingest() -> object:
        return ingest_job(spark, Lake(str(lake)), Location(store_url)).run()

    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(3))
    ingest()
    # The store lost everything, and an operator accepted that
    writer.command("FLUSHALL")
    stamp = ("dataset", "ds-new", "replaces", "ds-test")
    writer.command("HSET", "waystation.format", *stamp)
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(2))
    ingest()
    ingest()

    findings = audit(spark, Lake(str(lake)))

    assert findings.counts == {}
    (note,) = [note for note in findings.notes if "ds-test" in note]
    assert note.startswith("The store lost data set ds-test, and an operator accepted that;")
    assert gaps_of(lake, "ds-new") == [("ds-test", 0, 0, "store-lost")]
