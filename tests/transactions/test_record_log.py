"""The record log of a cell: one entry per call, readable whatever is in it."""

from __future__ import annotations

import pytest

from tests.transactions.cell_store import TERMS, open_cell_store
from waystation.store.embedded import EmbeddedServer
from waystation.transactions import names
from waystation.transactions.log_entry import unpack
from waystation.transactions.signals import Signals


@pytest.mark.parametrize("shift", range(4))
async def test_a_long_cause_is_cut_between_letters_and_a_short_one_is_kept(
    store_server: EmbeddedServer, shift: int
) -> None:
    async with open_cell_store(store_server) as cells:
        signals = Signals(cells.store, TERMS)
        ids = [await cells.start(), await cells.start()]
        long = "x" * shift + "ü€😀" * 1000
        await signals.cancel("default", ids[:1], cause=long, grace_ms=0)
        await signals.cancel("default", ids[1:], cause="two words\nand 😀", grace_ms=0)
        first, second = (await cells.facts())[-2:]
        assert first.kind == second.kind == "cancelled"
        assert long.startswith(first.cause)
        assert 1990 <= len(first.cause.encode()) <= 2000
        assert second.cause == "two words\nand 😀"


async def test_an_entry_tells_its_data_set_and_has_the_time_of_its_changes(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        started = await cells.start()
        (entry,) = await cells.logs.read(names.LOG, 0, 0, limit=10)
        assert unpack(entry.payload).dataset == TERMS.dataset
        assert entry.ms == (await cells.head(started)).since
        assert (await cells.claim()).log_end == entry.offset + 1


async def test_details_are_kept_byte_for_byte_at_every_size(store_server: EmbeddedServer) -> None:
    async with open_cell_store(store_server) as cells:
        details = [b"\xc0", b"\x90", b"\xc6" + (100_000).to_bytes(4) + bytes(100_000), b""]
        items = [cells.new(detail=each) for each in details]
        await cells.entry.start(0, items)
        found = [fact.detail for fact in await cells.facts()]
        assert found == [None, b"\x90", details[2], None]
