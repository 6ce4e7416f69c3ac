"""The hash of a transaction, as the store has it, split for the archive and put together again."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.archive.conformance import archived, opened
from tests.transactions.helpers import CELL, TransactionStore, open_transactions
from waystation.archive import SqliteArchive, join_hash, split_hash
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions import names
from waystation.transactions.progress import Sleep


async def whole(tx: TransactionStore, key: str) -> dict[bytes, bytes]:
    flat = await tx.store.call("HGETALL", key)
    return dict(zip(flat[::2], flat[1::2], strict=True))


BYTES = st.binary(max_size=40)


@given(st.dictionaries(BYTES, BYTES), BYTES)
def test_whatever_a_hash_holds_comes_back(others: dict[bytes, bytes], packed: bytes) -> None:
    whole = {**others, b"state": packed}
    assert join_hash(*split_hash(whole)) == whole


def test_a_hash_without_a_state_is_none_of_a_transaction() -> None:
    with pytest.raises(ValueError, match="no field state"):
        split_hash({b"head": b"x"})


@pytest.mark.parametrize("fields", [b"", b"\x00", b"\x81\xa1", b"no msgpack at all"])
def test_what_was_never_split_is_an_error(fields: bytes) -> None:
    with pytest.raises(ValueError, match="not the fields"):
        join_hash(b"", fields)


async def test_a_real_transaction_can_be_put_back_as_it_was(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with (
        open_transactions(store_server) as tx,
        opened(lambda: SqliteArchive(tmp_path / "archive.db")) as archive,
    ):
        held = await tx.running(external_id="order-1")
        await tx.progress.once(held, "1", "charge", bytes(range(256)))
        await tx.signals.set_switch("default", held.id, "amount", 3)
        sleep = Sleep(held=held, state=bytes(range(256)), switch="ok", place="1", at_most_ms=9000)
        await tx.progress.sleep(CELL, [sleep])
        key = names.state(held.id)
        before = await whole(tx, key)
        assert {b"head", b"externalId", b"switches", b"once:1:charge", b"wait:1:ok"} <= set(before)

        packed, fields = split_hash(before)
        await archive.upsert([archived(held.id, packed=packed, fields=fields)])
        await tx.store.call("DEL", key)
        found = (await archive.get([held.id]))[held.id]
        pairs = [part for pair in join_hash(found.packed, found.fields).items() for part in pair]
        await tx.store.call("HSET", key, *pairs)

        assert await whole(tx, key) == before
        # And it goes on from there
        await tx.signals.wake("default", held.id)
        (claimed,) = await tx.claim()
        assert claimed.extras[b"once:1:charge"] == bytes(range(256))
