"""An archive of hashes in memory, for tests that choose what happens between two scripts.

It keeps to the archive's first rule, only a higher version applies; what is on it can be looked at.
Everything that needs no such choice is tested with real archives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.kit.transaction_store import ARCHIVE_MS, CELL, TransactionStore
from waystation.archive import ArchivedState, split_hash
from waystation.store.scripts import script
from waystation.transactions import names
from waystation.transactions.archiving import ArchiveTurn, Confirmed, Given
from waystation.transactions.head import Head, parse
from waystation.transactions.progress import Sleep
from waystation.transactions.restoring import Loaded, LoadMode, Missing, Restoration

NODE = "node-a"
DAY_MS = 86_400_000
_GET = script("waystation.transactions", "get")


class Shelf:
    """Rows by id; also who loads them for `Signals`."""

    def __init__(self, tx: TransactionStore) -> None:
        self.tx = tx
        self.rows: dict[str, dict[bytes, bytes]] = {}
        #: What was asked for, call by call.
        self.brought: list[tuple[str, ...]] = []

    def head(self, transaction_id: str) -> Head:
        """The head of a row."""
        return parse(self.rows[transaction_id][b"head"])

    def keep(self, items: Iterable[Given]) -> None:
        """Keeps what is newer than what is there."""
        for each in items:
            version = parse(each.fields[b"head"]).version
            if each.id not in self.rows or version > self.head(each.id).version:
                self.rows[each.id] = each.fields

    def found(self, missing: Iterable[Missing]) -> list[Restoration]:
        """What is on the shelf for each."""
        return [Restoration(each, self.rows.get(each.id)) for each in missing]

    async def bring(
        self, owner: str, missing: Sequence[Missing], *, mode: LoadMode = ""
    ) -> dict[str, Loaded]:
        """Loads and restores."""
        self.brought.append(tuple(each.id for each in missing))
        outcomes = await self.tx.restoring.restore(CELL, self.found(missing), mode=mode)
        return {each.id: Loaded(done) for each, done in zip(missing, outcomes, strict=True)}

    async def archive(self, *, node: str = NODE) -> ArchiveTurn:
        """All that is due goes onto the shelf, and is confirmed."""
        await self.tx.archiving.turn(CELL, node=node, most=0, flight="leave")
        turn = await self.tx.archiving.turn(CELL, node=node, most=100)
        assert turn.role == "archiver", turn
        self.keep(turn.items)
        done = confirms(turn)
        return await self.tx.archiving.turn(CELL, node=node, most=0, confirmed=done)

    async def sleeper(self, *, delay_ms: int = DAY_MS, switch: str = "", **fields: object) -> str:
        """One that sleeps, and is on the shelf alone."""
        held = await self.tx.running(**fields)
        sleep = Sleep(held=held, state=b"asleep", delay_ms=delay_ms, switch=switch)
        await self.tx.progress.sleep(CELL, [sleep])
        await self.tx.machine.advance(ARCHIVE_MS / 1000 + 1)
        await self.archive()
        assert await self.tx.store.call("EXISTS", names.state(held.id)) == 0
        return held.id


async def miss(tx: TransactionStore, *ids: str) -> list[Missing]:
    """What is told to somebody who wants what is not in the store."""
    words: list[str | int] = ["", 0, 0, "load", *ids]
    replies = await tx.store.run(_GET, [names.log(CELL)], words)
    return [Missing(each, reply[0].decode()) for each, reply in zip(ids, replies, strict=True)]


async def nonces(tx: TransactionStore) -> dict[str, str]:
    """All load nonces of the cell, by id."""
    found = {}
    for key in await tx.store.call("KEYS", f"{names.tag(CELL)}loadH:*"):
        flat = await tx.store.call("HGETALL", key)
        for each, nonce in zip(flat[::2], flat[1::2], strict=True):
            found[each.decode()] = nonce.decode()
    return found


def confirms(turn: ArchiveTurn) -> list[Confirmed]:
    """A confirm for all that a turn has given out."""
    return [Confirmed(each.id, version_of(each), turn.now_ms) for each in turn.items]


def version_of(given: Given) -> int:
    """The version that was read."""
    return parse(given.fields[b"head"]).version


def row_with(given: Given) -> ArchivedState:
    """A row as an archive gives it back; its facts are of no account here."""
    packed, fields = split_hash(given.fields)
    return ArchivedState(
        id=given.id,
        owner="default",
        external_id="",
        pipeline="p",
        status="sleeping",
        step="",
        version=version_of(given),
        wake_ms=0,
        deadline_ms=0,
        started_ms=0,
        updated_ms=0,
        completed_ms=0,
        packed=packed,
        fields=fields,
    )
