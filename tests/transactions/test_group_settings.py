"""Settings of a node group: a process follows them whether it makes claims or not."""

from __future__ import annotations

import asyncio

import pytest

from tests.helpers.waiting import eventually
from tests.transactions.helpers import TransactionStore, open_transactions
from waystation.errors import InvalidInputError
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions.group_settings import Following
from waystation.transactions.nodes import GroupSettings, Nodes


def following(tx: TransactionStore, *, claims: bool, changes: list[int]) -> Following:
    following = Following(
        Nodes(tx.store, clock=tx.clock),
        tx.wakeups,
        "master",
        claims=claims,
    )
    following.on_change(lambda: changes.append(1))
    return following


async def test_a_process_without_claims_takes_in_what_its_group_is_told(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        nodes, changes = Nodes(tx.store, clock=tx.clock), list[int]()
        for number in range(12):
            await nodes.tell("master", "archive_batch", number)
        follower = following(tx, claims=False, changes=changes)
        await follower.start()
        try:
            assert follower.value == GroupSettings(revision=2, archive_batch=11)
            await nodes.tell("master", "archive_pause_ms", 50)
            await eventually(lambda: follower.value.archive_pause_ms == 50)
            assert len(changes) == 2
            # What another group is told is none of ours.
            await nodes.tell("other", "archive_batch", 7)
            await asyncio.sleep(0.05)
            assert follower.value.archive_batch == 11
        finally:
            await follower.stop()


async def test_a_process_with_claims_leaves_the_queue_to_them_and_follows(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        nodes, changes = Nodes(tx.store, clock=tx.clock), list[int]()
        follower = following(tx, claims=True, changes=changes)
        await follower.start()
        try:
            await nodes.tell("master", "archive_batch", 0)
            await asyncio.sleep(0.05)
            assert follower.value.archive_batch is None
            await tx.claim(group="master")
            await eventually(lambda: follower.value.archive_batch == 0)
        finally:
            await follower.stop()


async def test_settings_of_the_archive_have_bounds(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        nodes = Nodes(tx.store, clock=tx.clock)
        for setting, value in (("archive_batch", -1), ("archive_pause_idle_ms", 0)):
            with pytest.raises(InvalidInputError):
                await nodes.tell("master", setting, value)
