"""Ids tell their cell; keys of a cell share its tag, with the names of DATP."""

from __future__ import annotations

import pytest

from tests.transactions.cell_store import open_cell_store
from waystation.errors import SettingsError, StoreRefusedError, TransactionUnknownError
from waystation.logs import keys as log_names
from waystation.runtime.ids import CountingIds, RandomIds, SequentialIds
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions import names
from waystation.transactions.cells import CELLS_DEFAULT, Terms, open_cells


@pytest.mark.parametrize("cell", [0, 1, 255, 0xFFFF])
def test_an_id_tells_its_cell(cell: int) -> None:
    for identity in (RandomIds(), SequentialIds(RandomIds())):
        made = names.new_id(cell, identity)
        assert len(made) == 43
        assert names.cell_of(made) == cell
    assert names.new_id(1, CountingIds()) == "tx-0001" + "0" * 35 + "1"


@pytest.mark.parametrize(
    "text", ["", "tx-", "tx-" + "g" * 40, "tx-" + "0" * 39, "TX-" + "0" * 40, "tx-" + "0" * 41]
)
def test_what_is_no_id_belongs_to_no_transaction(text: str) -> None:
    with pytest.raises(TransactionUnknownError, match="is not the id"):
        names.cell_of(text)


def test_the_cell_of_an_external_id_follows_from_project_and_id_alone() -> None:
    found = {names.cell_for("default", f"r-{n}", 16) for n in range(500)}
    assert found == set(range(16))
    # Fixed for good: who starts it again after years must come to the same cell.
    assert [names.cell_for("default", "r-17", cells) for cells in (1, 16, 1024)] == [0, 4, 420]
    assert names.cell_for("shop", "r-17", 1024) != names.cell_for("default", "r-17", 1024)


def test_a_child_has_the_same_id_whoever_makes_it_in_its_parents_cell() -> None:
    parent = names.new_id(7, RandomIds())
    made = {names.child_id(parent, round_, n) for round_ in (1, 2) for n in range(1, 1001)}
    assert len(made) == 2000
    assert {names.cell_of(each) for each in made} == {7}
    assert names.child_id(parent, 1, 1) == names.child_id(parent, 1, 1)


def test_keys_are_those_of_the_seed_behind_the_tag_of_their_cell() -> None:
    transaction = "tx-0002" + "0" * 36
    assert names.tag(2) == "{tx.2}:"
    assert names.log(2) == "{tx.2}:log" == log_names.entries("tx", 2)
    assert names.state(transaction) == f"{{tx.2}}:stateH:{transaction}"
    assert names.queue_in(2, "g") == "{tx.2}:qInL:g"
    assert names.queue_out(2, "g") == "{tx.2}:qOutL:g"
    assert names.queue_admin("g") == "{tx.0}:qAdminL:g"
    assert names.node_group("g") == "{tx.0}:nodeGroupH:g"
    assert names.pipeline(2, "default", "p") == "{tx.2}:pipelineH:p"
    assert names.pipeline(2, "shop", "p") == "{tx.2}:pipelineH:shop.p"
    assert names.hold_list(2, "shop", "p") == "{tx.2}:holdL:shop.p"
    assert names.external_id(2, "shop", "r:1") == "{tx.2}:externalId:shop:r:1"
    assert names.sorted_set(2, "leaseZ") == "{tx.2}:leaseZ"
    assert names.work_topic(2, "g") == b"{tx.2}:work:g"
    assert names.due_topic(2) == b"{tx.2}:due"
    assert names.ended_topic(2) == b"{tx.2}:ended"


async def test_the_number_of_cells_is_fixed_when_the_data_set_begins(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server, cells=3) as cells:
        await open_cells(cells.store, cells.logs, 3)
        assert await cells.logs.names() == {"tx": 3}
        for other in (1, 4):
            with pytest.raises(StoreRefusedError, match=f"has 3 transaction cells.* is {other}"):
                await open_cells(cells.store, cells.logs, other)
        assert await cells.logs.names() == {"tx": 3}
        for wrong in (-1, 0x10001):
            with pytest.raises(SettingsError, match="between 0 and 65536"):
                await open_cells(cells.store, cells.logs, wrong)


async def test_cells_without_a_setting_are_those_of_the_data_set_or_the_default(
    store_server: EmbeddedServer,
) -> None:
    # A data set of a release whose default was 1 keeps its number; a new one can grow.
    async with open_cell_store(store_server, cells=1) as cells:
        assert await open_cells(cells.store, cells.logs, 0) == 1
        await cells.store.call("FLUSHALL")
        assert await open_cells(cells.store, cells.logs, 0) == CELLS_DEFAULT > 1
        assert await cells.logs.names() == {"tx": CELLS_DEFAULT}
        assert await open_cells(cells.store, cells.logs, CELLS_DEFAULT) == CELLS_DEFAULT


def test_terms_are_three_words() -> None:
    terms = Terms(dataset="ds-1", archive_delay_ms=5, external_id_ms=7)
    assert terms.argument == "ds-1 5 7"
