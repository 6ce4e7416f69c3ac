"""The record log of a cell: one entry per call, readable whatever is in it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.transactions.cell_store import TERMS, open_cell_store
from tests.transactions.engine_helpers import open_machine
from waystation import App, Context, Wait
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions import names
from waystation.transactions.cells import open_cells
from waystation.transactions.log_entry import StepDetail, unpack
from waystation.transactions.record import decode
from waystation.transactions.signals import Signals
from waystation.transactions.states import State


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
        (entry,) = (await cells.logs.read(names.LOG, 0, 0, limit=10)).entries()
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


async def test_record_logs_of_all_cells_share_256_mib_and_16_until_history_reads_them(
    store_server: EmbeddedServer,
) -> None:
    for count in (1, 2, 16):
        async with open_cell_store(store_server, cells=count) as cells:
            found = [(await cells.logs.trim(names.LOG, cell)).retention for cell in range(count)]
            assert {each.policy for each in found} == {"drop_and_count"}
            assert sum(each.max_bytes or 0 for each in found) == 256 * 1_048_576
            unread = [
                int(await cells.store.call("HGET", f"{names.log(cell)}:head", "unread_bytes"))
                for cell in range(count)
            ]
            assert sum(unread) == 16 * 1_048_576


async def test_what_a_full_log_does_is_what_the_last_who_opened_the_cells_has_said(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server, cells=2) as cells:
        for full in ("refuse", "drop_and_count"):
            await open_cells(cells.store, cells.logs, 2, full=full)
            found = [(await cells.logs.trim(names.LOG, cell)).retention for cell in range(2)]
            assert {each.policy for each in found} == {full}


async def test_a_sleep_is_recorded_with_its_attempt_and_the_state_that_sleeps(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app = App()

    @app.step("ask")
    async def ask(ctx: Context) -> Wait:
        return Wait("approved", at_most="2d", note="the bank is closed")

    app.pipeline("p", ["util/checkpoint", "ask"])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        started = await machine.start("p", {"cents": 500})
        found = await machine.reached(started, State.WAITING_SWITCH)
        facts = [fact for fact in await machine.facts() if fact.id == started]
        assert [fact.kind for fact in facts] == ["started", "step", "slept"]
        slept = facts[-1]
        assert (slept.version, slept.epoch) == (found.head.version, found.head.epoch)
        assert slept.state == State.WAITING_SWITCH
        assert slept.detail is not None
        detail = msgspec.msgpack.decode(slept.detail, type=StepDetail)
        assert (detail.switch, detail.state) == ("approved", found.state)
        (attempt,) = detail.attempts
        assert (attempt.place, attempt.step_type, attempt.number) == ("2", "ask", 1)
        assert (attempt.outcome, attempt.note) == ("waiting", "the bank is closed")
        assert attempt.begun_ms <= attempt.ended_ms
        assert attempt.begun_after == 2, "it has seen the start, and the step before"
        (_, kept) = decode(found.state).journal
        assert kept.last[0].note == "the bank is closed", "and its own journal has the same"
