"""A batch on its way to the archive: each state once, with the time of its own read."""

from __future__ import annotations

from pathlib import Path

from waystation.archive import SqliteArchive
from waystation.transactions.archive_writing import Batch, write
from waystation.transactions.archiving import Confirmed, Given
from waystation.transactions.record import TransactionState, encode

HEAD = b"1700 sleeping 7 2 0 - master in child shop - 9000 - 0 - remove"
STATE = encode(TransactionState(type="refund"))


def given(number: int, head: bytes = HEAD) -> Given:
    return Given(f"tx-{number}", {b"head": head, b"state": STATE})


async def test_each_state_is_confirmed_with_the_time_at_which_it_was_read_itself(
    tmp_path: Path,
) -> None:
    """With a later time, what was asked for again in between would be taken for done."""
    batch = Batch()
    batch.add([given(1), given(2, head=b"7")], 100)
    batch.add([given(3)], 200)
    archive = SqliteArchive(tmp_path / "archive.db")
    await archive.open()
    try:
        refused, *kept = await write(archive, batch)
        again = await write(archive, batch)
    finally:
        await archive.close()
    assert kept == [Confirmed("tx-1", 7, 100), Confirmed("tx-3", 7, 200)]
    assert (refused.id, refused.read_ms) == ("tx-2", 100)
    assert refused.cause == "its head cannot be read"
    assert again == [refused, *kept], "a repetition is confirmed as well"


def test_what_comes_twice_or_is_being_written_is_in_a_batch_once() -> None:
    before = Batch.of([given(1)], 100)
    batch = Batch(besides=before.read_ms.keys())
    batch.add([given(1), given(2)], 200)
    batch.add([given(2), given(3)], 300)
    assert [row.id for row in batch.rows] == ["tx-2", "tx-3"]
    assert batch.read_ms == {"tx-2": 200, "tx-3": 300}
    assert batch.bytes == 2 * len(STATE)
