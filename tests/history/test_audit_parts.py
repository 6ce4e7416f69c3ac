"""The audit of channels and pools finds damage in store and record log by the ids of messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from tests.history.log_writer import LogWriter
from tests.history.part_life import POOL, PROJECT, PartLife
from waystation.config import ChannelRule
from waystation.history.audit import Findings, Live, audit
from waystation.history.ingest.job import ingest_job
from waystation.history.lake.table import Lake
from waystation.history.sources.options import Location
from waystation.pools import PoolOptions
from waystation.pools.held import Taken

RULES = (
    ChannelRule(pattern="room"),
    ChannelRule(pattern="short", backlog_max=2, backlog_policy="drop_oldest"),
    ChannelRule(pattern="secret", record="none"),
)
#: Hash tag of the keys of the pool.
TAG = f"{{p.{PROJECT}.{POOL}}}:"


@pytest.fixture
def check(spark: SparkSession, store_url: str, lake: Path) -> Any:
    """Return a function that ingests and audits."""
    ingest = ingest_job(spark, Lake(str(lake)), Location(store_url)).run

    def run() -> Findings:
        with Live(store_url) as live:
            return audit(spark, Lake(str(lake)), live=live, ingest=ingest)

    return run


def live_through_all(life: PartLife) -> Taken:
    """Publish and drop messages of channels. Settle, bury and redrive messages of a pool.

    Message `m-6` stays a dead letter. Return message `m-5`, which stays taken.
    """
    life.publish("room", "a", "b", "c")
    life.publish("secret", "s")
    life.publish("room", "d")
    life.publish("short", "x", "y", "z", "z", "w")
    life.enqueue(("k", "m-1"), ("k", "m-2"), ("l", "m-3"), ("l", "m-4"))
    first, third = sorted(life.take(), key=lambda each: each.number)
    life.settle(first)
    life.bury(third)
    life.redrive(third.number)
    for _ in range(2):
        life.settle(*life.take())
    life.enqueue(("k", "m-5"), ("l", "m-6"))
    fifth, sixth = sorted(life.take(), key=lambda each: each.number)
    life.bury(sixth)
    assert (fifth.number, sixth.number) == (6, 7)
    return fifth


def log_of(writer: LogWriter, part: str, name: str) -> str:
    """Return the record log that has the entries of a channel or pool."""
    keys = writer.command("KEYS", f"{{{part}.*:log")
    assert isinstance(keys, list)
    for key in keys:
        entries = writer.command("XRANGE", key, "-", "+")
        assert isinstance(entries, list)
        if any(msgspec.msgpack.decode(fields[1])[2] == name for _, fields in entries):
            return str(key.decode()[1:].partition("}")[0].rpartition(".")[0])
    raise AssertionError(f"no entry of {name}")


def found(findings: Findings) -> set[tuple[str, str]]:
    return {(each.check, each.id) for each in findings.examples}


@pytest.mark.timeout(300)
def test_audit_finds_messages_that_vanish_from_channels_and_pools(
    writer: LogWriter, store_url: str, tmp_path: Path, check: Any
) -> None:
    with PartLife(store_url, tmp_path, *RULES) as life:
        live_through_all(life)
    clean = check()
    assert (clean.counts, clean.examples) == ({}, [])
    assert "Calls of channels: 1 not recorded, as their option `record` says." in clean.notes
    assert clean.checked["messages of channels"] == 8
    assert clean.checked["messages of pools"] == 7

    writer.command("DEL", "c.{room}.m.2")
    pending = writer.command("LRANGE", f"{TAG}m:k", 0, -1)
    assert isinstance(pending, list)
    writer.command("LREM", f"{TAG}m:k", 1, pending[0])
    writer.command("HDEL", f"{TAG}dead", 7)
    damaged = check()

    assert found(damaged) == {("lost", "b"), ("lost", "m-5"), ("lost", "m-6")}
    assert damaged.counts == {"lost": 3}


@pytest.mark.timeout(300)
def test_audit_finds_events_that_contradict_each_other(
    writer: LogWriter, store_url: str, tmp_path: Path, check: Any
) -> None:
    with PartLife(store_url, tmp_path, *RULES) as life:
        live_through_all(life)

    def record(log: str, name: str, *events: tuple[str, Any]) -> None:
        writer.append_raw(log, [msgspec.msgpack.encode([1, PROJECT, name, events])])

    room, agents = log_of(writer, "channels", "room"), log_of(writer, "pools", POOL)
    # Clock 5 is recorded nowhere. An expired message needs no place in the store.
    record(room, "room", ("published 6 0", "late"))
    record(agents, POOL, ("acknowledged 1 1", ["k", "worker"]))
    record(agents, POOL, ("taken 2 1 0", ["k", "worker"]))
    findings = check()

    assert found(findings) == {
        ("clock", "late"),
        ("settled twice", "m-1"),
        ("taken again", "m-2"),
        ("overtaken", "m-2"),
    }
    (clock,) = (each for each in findings.examples if each.check == "clock")
    assert clock.text == "No record has clocks 5 to 5."


@pytest.mark.timeout(300)
def test_audit_finds_removed_record_and_checks_no_message_before_it(
    writer: LogWriter, store_url: str, tmp_path: Path, check: Any
) -> None:
    with PartLife(store_url, tmp_path, *RULES) as life:
        live_through_all(life)
    room, agents = log_of(writer, "channels", "room"), log_of(writer, "pools", POOL)
    # The publish of b, and the acknowledgement of m-1.
    writer.remove(room, 1)
    (acknowledged,) = (
        int(entry.partition(b"-")[0])
        for entry, fields in writer.command("XRANGE", f"{{{agents}.0}}:log", "-", "+")  # type: ignore[attr-defined]
        if b"acknowledged 1 " in fields[1]
    )
    writer.remove(agents, acknowledged)
    findings = check()

    assert findings.counts == {"log.damaged": 2}
    assert {each.position for each in findings.examples} == {
        f"{room}/0/1",
        f"{agents}/0/{acknowledged}",
    }


@pytest.mark.timeout(300)
def test_audit_reports_no_loss_of_messages_that_were_settled_without_records(
    writer: LogWriter, store_url: str, tmp_path: Path, check: Any
) -> None:
    with PartLife(store_url, tmp_path, *RULES) as life:
        taken = live_through_all(life)
        now = life.run(life.pools.get(PROJECT, POOL))
        options = PoolOptions(record="none")
        life.pool = life.run(life.pools.change(PROJECT, POOL, options, version=now.version))
        life.settle(taken)
    rule = ChannelRule(pattern="short", record="none", backlog_max=1, backlog_policy="drop_oldest")
    with PartLife(store_url, tmp_path, rule) as life:
        life.publish("short", "hidden")
    findings = check()

    assert (findings.counts, findings.examples) == ({}, [])
    assert [note.partition(":")[0] for note in findings.notes if "messages" in note] == [
        "default/short",
        "default/agents",
    ]
    notes = " ".join(findings.notes)
    assert "2 messages are gone, and it published others since" in notes
    assert "1 messages have no end." in notes
