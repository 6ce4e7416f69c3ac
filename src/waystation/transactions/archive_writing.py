"""Writes a batch of states to the archive, and says what the store is to be told of each.

What the archive refuses, or what is no state that could be archived, has its cause. What it does
not have afterwards is not confirmed at all.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from waystation.archive import Archive, ArchivedState, join_hash
from waystation.telemetry import metrics
from waystation.transactions.archive_row import row_of
from waystation.transactions.archiving import Confirmed, Given

_applied, _known, _refused = map(metrics.archive_rows.of, ("applied", "known", "refused"))


class Batch:
    """States that were handed out, made ready for the archive before their turn to be written."""

    def __init__(self, besides: Container[str] = ()) -> None:
        """States of `besides` are in the hands of another batch."""
        self._besides = besides
        #: Id → the store's time at which it was read.
        self.read_ms: dict[str, int] = {}
        self.rows: list[ArchivedState] = []
        #: What is no state that could be archived.
        self.unfit: list[Confirmed] = []
        self.bytes = 0

    @classmethod
    def of(cls, items: Sequence[Given], read_ms: int) -> Batch:
        """A batch of one turn."""
        batch = cls()
        batch.add(items, read_ms)
        return batch

    def add(self, items: Sequence[Given], read_ms: int) -> None:
        """Makes rows of what a turn has brought; what was there before comes once."""
        for each in items:
            if each.id in self.read_ms or each.id in self._besides:
                continue
            self.read_ms[each.id] = read_ms
            try:
                row = row_of(each.id, each.fields)
                self.rows.append(row)
                self.bytes += len(row.packed)
            except ValueError as error:
                self._set_aside(each, str(error))
            except Exception as error:
                # Whatever is wrong with it: one state must never keep others from the archive.
                self._set_aside(each, f"{type(error).__name__}: {error}")

    def _set_aside(self, given: Given, cause: str) -> None:
        read_ms = self.read_ms[given.id]
        self.unfit.append(Confirmed(given.id, _version_of(given), read_ms, cause=cause))


async def write(archive: Archive, batch: Batch) -> list[Confirmed]:
    """Writes it; ArchiveUnavailableError says that it may be repeated."""
    kept = await archive.upsert(batch.rows)
    causes = {each.id: each.reason for each in kept.refused}
    there = [row for row in batch.rows if row.id not in causes] if causes else batch.rows
    refused = batch.unfit + [
        Confirmed(row.id, row.version, batch.read_ms[row.id], cause=causes[row.id])
        for row in batch.rows
        if row.id in causes
    ]
    _applied.inc(kept.applied)
    _known.inc(len(there) - kept.applied)
    _refused.inc(len(refused))
    if kept.applied < len(there):
        return refused + await _compared(archive, there, batch.read_ms)
    return refused + [Confirmed(row.id, row.version, batch.read_ms[row.id]) for row in there]


async def _compared(
    archive: Archive, rows: Sequence[ArchivedState], read_ms: Mapping[str, int]
) -> list[Confirmed]:
    """Some were there before: as they are, since somebody died before he confirmed; or newer."""
    found = await archive.get([row.id for row in rows])
    confirmed = []
    for row in rows:
        kept = found.get(row.id)
        if kept is None or kept.version < row.version:
            continue  # Deleted since, by its age; it comes again.
        same = kept.version == row.version and _hash_of(kept) == _hash_of(row)
        above = 0 if same else kept.version
        confirmed.append(Confirmed(row.id, row.version, read_ms[row.id], above=above))
    return confirmed


def _hash_of(row: ArchivedState) -> dict[bytes, bytes] | None:
    """Not as bytes: the order of fields is nobody's promise. None for what was never written."""
    try:
        return join_hash(row.packed, row.fields)
    except ValueError:
        return None


def _version_of(given: Given) -> int:
    """Of a head that may be none; 0 is no version of anything."""
    words = given.fields.get(b"head", b"").split(b" ")
    return int(words[2]) if len(words) > 2 and words[2].isdigit() else 0
