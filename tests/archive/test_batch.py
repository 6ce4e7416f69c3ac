"""Halving: bad states are found among good ones, with few writes, and an outage ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.archive.conformance import archived
from waystation.archive.batch import PoisonedError, write_batch
from waystation.archive.protocol import ArchivedState
from waystation.errors import ArchiveUnavailableError


class Table:
    """Takes a batch as a whole or not at all, as a transaction does."""

    def __init__(self, bad: set[int], *, breaks_at: int = 0) -> None:
        self.bad = {f"tx-{number}" for number in bad}
        self.breaks_at = breaks_at
        self.kept: set[str] = set()
        self.writes = 0

    async def write(self, states: Sequence[ArchivedState]) -> int:
        self.writes += 1
        if self.writes == self.breaks_at:
            raise ArchiveUnavailableError("gone")
        names = {state.id for state in states}
        if found := names & self.bad:
            raise PoisonedError(f"one of {len(found)}")
        self.kept |= names
        return len(names)


@given(st.integers(0, 60), st.sets(st.integers(0, 59)))
def test_exactly_the_bad_ones_are_named_and_all_others_kept(size: int, bad: set[int]) -> None:
    table = Table(bad)
    done = asyncio.run(write_batch([archived(f"tx-{n}") for n in range(size)], table.write))
    named = {each.id for each in done.refused}
    assert named == {f"tx-{n}" for n in bad if n < size}
    assert table.kept == {f"tx-{n}" for n in range(size)} - named
    assert done.applied == len(table.kept)
    assert all(each.reason == "one of 1" for each in done.refused)


async def test_one_bad_among_a_thousand_costs_some_twenty_writes() -> None:
    table = Table({437})
    done = await write_batch([archived(f"tx-{n}") for n in range(1000)], table.write)
    assert done.applied == 999
    assert table.writes <= 22


async def test_an_outage_in_the_middle_ends_it_and_what_is_sent_again_ends_the_same() -> None:
    states = [archived(f"tx-{n}") for n in range(100)]
    for breaks_at in range(1, 12):
        table = Table({37}, breaks_at=breaks_at)
        with pytest.raises(ArchiveUnavailableError):
            await write_batch(states, table.write)
        assert "tx-37" not in table.kept
        done = await write_batch(states, table.write)
        assert [each.id for each in done.refused] == ["tx-37"]
        assert len(table.kept) == 99
