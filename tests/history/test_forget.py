"""Forget: the payloads of a person are gone from the lake, and nothing else has changed."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.history.forget_life import (
    ANN,
    BOB,
    EXTERNAL_ID,
    WAITING_ID,
    lived,
    marker,
    occurrences,
)
from tests.history.local_ingest import local_ingest
from tests.history.log_writer import LogWriter, envelopes
from waystation.config import Config
from waystation.errors import LakeRefusedError, NoLakeError
from waystation.history.audit import Findings, audit
from waystation.history.lake import forget as forgetting
from waystation.history.lake.files import TableWriter
from waystation.history.lake.forget import ForgottenRows, forget
from waystation.history.lake.maintenance import maintain
from waystation.history.lake.schema import BASE, MESSAGES
from waystation.history.lake.table import Lake, LakeTable
from waystation.history.lake.trace import Person
from waystation.history.store_access import store_access
from waystation.runtime.clock import Clock

GROUP = Person(project="default", group=ANN)
EXTERNAL = Person(project="default", external_id=EXTERNAL_ID)
ORDERS = "t.default.orders.0"
#: Columns that never change.
FIXED = {
    "messages": ("position", "id", "group", "size"),
    "deliveries": ("message_id", "group", "kind", "from_place", "to_place", "outcome", "status"),
    "transactions": ("transaction_id", "kind", "version", "state", "status", "parent_id"),
    "channels": ("channel", "kind", "clock", "message_id"),
    "pools": ("pool", "kind", "number", "recipient_key", "message_id"),
    "webhook_attempts": ("lane", "delivery_id", "attempt", "verdict"),
    "operations": ("kind", "subject"),
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the data of a station that has ended, and its lake."""
    folder = tmp_path_factory.mktemp("forget")

    async def live() -> None:
        async with lived(str(folder / "data")) as (_, _, settings):
            await asyncio.to_thread(ingest_all, settings, folder / "lake")

    asyncio.run(live())
    return folder


@pytest.fixture
def lake(filled: Path, tmp_path: Path) -> Path:
    """Return a copy of the lake."""
    shutil.copytree(filled / "lake", tmp_path / "lake")
    return tmp_path / "lake"


def ingest_all(settings: Config, lake: Path) -> None:
    with store_access(settings) as access:
        local_ingest(lake, access.url()).run()


def run(lake: Path, person: Person, **more: Any) -> ForgottenRows:
    return forget(Lake(str(lake)), person, Clock().now_ms, **more)


def fixed_values(lake: Path) -> dict[str, list[str]]:
    """Return what must stay of each row of all tables."""
    found = {}
    for schema in BASE:
        if (lake / schema.name).exists():
            stamp = ("row_state", "log", "log_partition", "log_offset", "item", "time")
            table = DeltaTable(str(lake / schema.name)).to_pyarrow_table(
                columns=[*stamp, *FIXED[schema.name]]
            )
            found[schema.name] = sorted(map(repr, table.to_pylist()))
    return found


def files(lake: Path) -> set[Path]:
    return {file for file in lake.rglob("*") if file.is_file()}


def test_forget_group_blanks_its_messages_and_all_that_they_caused(lake: Path) -> None:
    before = fixed_values(lake)
    bob = occurrences(lake, marker(BOB))
    planned = run(lake, GROUP, dry_run=True)
    assert planned.rows.keys() == {
        *("messages", "deliveries", "channels", "pools", "webhook_attempts", "transactions")
    }

    done = run(lake, GROUP)

    assert (done.rows, done.open_transactions) == (planned.rows, 0)
    assert done.deleted_files == done.files > 0
    assert fixed_values(lake) == before
    # Three orders, and three receipts of other groups that their transactions produced
    messages = DeltaTable(str(lake / "messages")).to_pyarrow_table().to_pylist()
    forgotten = [row for row in messages if row["recorded"] == "forgotten"]
    assert len(forgotten) == planned.rows["messages"] == 6
    assert {row["payload"] for row in forgotten} == {None}
    headers = {(h["name"], h["value"]) for row in forgotten for h in row["headers"]}
    assert headers == {("content-type", "application/json"), ("x-name", "")}
    # The marker is left in transactions that a client started without a message
    transactions = DeltaTable(str(lake / "transactions")).to_pyarrow_table().to_pylist()
    left = [row for row in transactions if marker(ANN) in repr(row)]
    assert left
    assert {row["recorded"] for row in left} == {"full"}
    run(lake, EXTERNAL)
    run(lake, Person(project="default", external_id=WAITING_ID))
    assert occurrences(lake, marker(ANN)) == {}
    assert fixed_values(lake) == before
    # The other person has lost nothing
    assert occurrences(lake, marker(BOB)).keys() == bob.keys()
    assert run(lake, Person(project="default", group=BOB), dry_run=True).rows == planned.rows


def test_forget_external_id_follows_children_and_is_blanked_when_all_have_ended(
    lake: Path,
) -> None:
    done = run(lake, EXTERNAL)
    assert done.rows.keys() >= {"transactions", "messages", "deliveries", "channels"}
    assert occurrences(lake, EXTERNAL_ID) == {}
    assert run(lake, EXTERNAL) == ForgottenRows()

    waiting = Person(project="default", external_id=WAITING_ID)
    done = run(lake, waiting)
    assert (done.open_transactions, run(lake, waiting).rows) == (1, {})
    # The id finds the rows of its end, when they are there
    started = DeltaTable(str(lake / "transactions")).to_pyarrow_table(
        filters=[("external_id", "=", WAITING_ID)]
    )
    assert started.column("recorded").to_pylist() == ["forgotten"]
    assert started.column("data").to_pylist() == [None]


def test_forget_dry_run_changes_nothing(lake: Path) -> None:
    before = files(lake)
    assert run(lake, GROUP, dry_run=True).total > 0
    assert files(lake) == before


def test_forget_of_nobody_in_the_project_or_topic_changes_nothing(lake: Path) -> None:
    before = files(lake)
    for person in (
        Person(project="other", group=ANN),
        Person(project="default", group=ANN, topic="receipts"),
        Person(project="default", external_id="unknown"),
    ):
        assert run(lake, person) == ForgottenRows()
    assert files(lake) == before
    narrow = run(lake, Person(project="default", group=ANN, topic="orders"), dry_run=True)
    assert narrow.rows == run(lake, GROUP, dry_run=True).rows


def test_forget_recipient_key_blanks_messages_of_pools(lake: Path) -> None:
    person = Person(project="default", recipient_key=ANN)
    assert run(lake, person).rows == {"pools": 3}
    assert "pools" not in occurrences(lake, marker(ANN))


class CrashError(BaseException):
    """The process crashes here."""


@pytest.mark.parametrize("person", [GROUP, EXTERNAL], ids=["group", "external-id"])
def test_forget_after_a_crash_anywhere_completes(
    lake: Path, monkeypatch: pytest.MonkeyPatch, person: Person
) -> None:
    before = fixed_values(lake)
    counts = run(lake, person, dry_run=True).rows
    steps: list[tuple[object, str]] = [
        (LakeTable, "replace"),
        (LakeTable, "forget_statistics"),
        (forgetting, "delete_file"),
        (TableWriter, "close"),
    ]
    crashes, allowed = 0, 0
    while True:
        left = allowed

        def mortal(step: Callable[..., Any]) -> Callable[..., Any]:
            def called(*given: Any, **more: Any) -> Any:
                nonlocal left
                if left == 0:
                    raise CrashError
                left -= 1
                done = step(*given, **more)
                if left == 0:
                    raise CrashError
                return done

            return called

        with monkeypatch.context() as patch:
            for owner, name in steps:
                patch.setattr(owner, name, mortal(getattr(owner, name)))
            try:
                run(lake, person)
            except CrashError:
                crashes += 1
                # Each run gets a little farther than the one before.
                allowed = allowed % 5 + 1
                continue
        break

    assert crashes > 5
    assert fixed_values(lake) == before
    assert run(lake, person) == ForgottenRows()
    for name in counts:
        found = DeltaTable(str(lake / name)).to_pyarrow_table(columns=["recorded"]).to_pylist()
        assert sum(row["recorded"] == "forgotten" for row in found) == counts[name]
    run(lake, EXTERNAL if person is GROUP else GROUP)
    run(lake, Person(project="default", external_id=WAITING_ID))
    assert occurrences(lake, marker(ANN)) == {}


def test_forget_that_is_killed_while_it_writes_completes_the_next_time(lake: Path) -> None:
    before = fixed_values(lake)
    program = f"""
import os, signal
from waystation.history.lake.files import TableWriter
from waystation.history.lake.forget import forget
from waystation.history.lake.table import Lake
from waystation.history.lake.trace import Person
from waystation.runtime.clock import Clock
close, closed = TableWriter.close, []
def killed(writer):
    closed.append(close(writer))
    if len(closed) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return closed[-1]
TableWriter.close = killed
forget(Lake({str(lake)!r}), Person(project="default", group={ANN!r}), Clock().now_ms)
"""
    ended = subprocess.run([sys.executable, "-c", program], check=False)
    assert ended.returncode == -signal.SIGKILL

    assert run(lake, GROUP).uncommitted_files == 0
    # The killed process has written rows that are not of the group to a file of no version
    assert run(lake, EXTERNAL).uncommitted_files == 1
    run(lake, Person(project="default", external_id=WAITING_ID))
    assert fixed_values(lake) == before
    assert occurrences(lake, marker(ANN)).keys() == {"channels"}
    for file in files(lake):
        os.utime(file, (0, 0))
    maintain(str(lake / "channels"), Clock().now_ms(), vacuum_hours=1)
    assert occurrences(lake, marker(ANN)) == {}


def test_forget_beside_a_compaction_and_an_ingest_doubles_nothing(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fixed_values(lake)
    replace, overtaken = LakeTable.replace, set[str]()

    def slow(table: LakeTable, *given: Any, **more: Any) -> None:
        if table.schema.name not in overtaken:
            overtaken.add(table.schema.name)
            done = DeltaTable(table.folder).optimize.compact()
            assert done["numFilesAdded"] or table.schema.name != "messages"
        replace(table, *given, **more)

    # Given two files of the newest day, which a compaction combines
    again = Lake(str(lake)).open(MESSAGES)
    (old, *_) = again.listed()
    again.replace([old], split(lake, old), now_ms=Clock().now_ms())
    monkeypatch.setattr(LakeTable, "replace", slow)

    run(lake, GROUP)

    assert "messages" in overtaken
    assert fixed_values(lake) == before
    run(lake, EXTERNAL)
    run(lake, Person(project="default", external_id=WAITING_ID))
    assert occurrences(lake, marker(ANN)) == {}
    assert fixed_values(lake) == before


def split(lake: Path, file: Any) -> list[Any]:
    """Write the rows of a file to two files."""
    from waystation.history.lake.files import read_batches

    folder = str(lake / "messages")
    written = []
    (batch,) = read_batches(folder, file.path, MESSAGES.file_schema)
    for part in (batch.slice(0, 2), batch.slice(2)):
        writer = TableWriter(folder, MESSAGES)
        writer.write(part)
        written += writer.close()
    return written


def test_forget_blanks_rows_that_a_restored_store_lost(
    store_url: str, writer: LogWriter, tmp_path: Path
) -> None:
    lake = tmp_path / "other-lake"
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(2, group=BOB))
    backup = writer.backup()
    writer.append(ORDERS, envelopes(2, first=2, group=ANN))
    local_ingest(lake, store_url).run()
    writer.restore(backup)
    # Other messages get the offsets that the store lost
    writer.append(ORDERS, envelopes(2, first=7, group=BOB))
    assert local_ingest(lake, store_url).run().lost_rows == 2

    assert run(lake, GROUP).rows == {"messages": 2}

    rows = DeltaTable(str(lake / "messages")).to_pyarrow_table().to_pylist()
    blank = [(row["row_state"], row["id"]) for row in rows if row["payload"] is None]
    assert sorted(blank) == [("lost", "m-2"), ("lost", "m-3")]
    assert local_ingest(lake, store_url).run().rows == 0


def test_forget_is_refused_in_a_table_of_a_newer_release_and_without_a_lake(
    lake: Path, tmp_path: Path
) -> None:
    with pytest.raises(NoLakeError):
        run(tmp_path / "nothing", GROUP)
    from deltalake import Field
    from deltalake.schema import PrimitiveType

    table = DeltaTable(str(lake / "messages"))
    table.alter.add_columns([Field("later", PrimitiveType("string"))])
    with pytest.raises(LakeRefusedError):
        run(lake, GROUP)


def test_forget_imports_no_pyspark() -> None:
    program = """
import sys
sys.modules["pyspark"] = None
import waystation.history.lake.forget, waystation.history.lake.expiry
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_vacuum_after_forget_leaves_a_table_that_readers_read(lake: Path) -> None:
    before = fixed_values(lake)
    run(lake, GROUP)
    for schema in BASE:
        maintain(str(lake / schema.name), Clock().now_ms(), vacuum_hours=1)
    assert fixed_values(lake) == before
    Lake(str(lake)).snapshot().verify_files()


@pytest.mark.timeout(240)
def test_audit_after_forget_finds_nothing(filled: Path, lake: Path, spark: SparkSession) -> None:
    def check() -> Findings:
        return audit(spark, Lake(str(lake)))

    before = check()
    run(lake, GROUP)
    run(lake, EXTERNAL)
    after = check()

    assert (before.counts, before.examples) == ({}, [])
    assert (after.counts, after.examples) == ({}, [])
    assert (after.checked, after.notes) == (before.checked, before.notes)
