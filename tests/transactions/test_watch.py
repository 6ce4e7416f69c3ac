"""The watch: operators hear, once, when nobody archives, nobody sends, or states are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.transactions.archive_helpers import Movers, open_movers
from tests.transactions.helpers import CELL
from waystation.delivery.addresses import AddressGuard
from waystation.delivery.notices import latest_notices
from waystation.delivery.sender import Sender
from waystation.store.embedded.server import EmbeddedServer
from waystation.telemetry import metrics
from waystation.testing.endpoint import FakeEndpoint
from waystation.transactions import names
from waystation.transactions.archiving import Confirmed
from waystation.transactions.nodes import NodeRecord, Nodes
from waystation.transactions.watch import LATE_MS, LOOK_SECONDS, Watch


@asynccontextmanager
async def watching(
    movers: Movers, *, error: str = "", notice_url: str = ""
) -> AsyncIterator[tuple[Watch, Nodes]]:
    store, clock = movers.tx.store, movers.tx.clock
    sender, nodes = Sender(AddressGuard((), loopback=True)), Nodes(store, clock=clock)
    watch = Watch(
        store,
        movers.tx.signals,
        nodes,
        sender,
        cells=1,
        clock=clock,
        notice_url=notice_url,
        archive_error=lambda: error,
    )
    try:
        yield watch, nodes
    finally:
        await watch.stop()
        await nodes.stop()
        await sender.close()


async def five_minutes_late(movers: Movers) -> None:
    await movers.sleepers(3, delay_ms=30 * 86_400_000)
    await movers.due()
    await movers.tx.machine.advance(LATE_MS / 1000 + 1)


async def told(movers: Movers) -> list[tuple[str, str]]:
    return [(each.kind, each.cause) for each in await latest_notices(movers.tx.store, most=100)]


async def test_nothing_is_told_while_all_is_well(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_movers(store_server, tmp_path) as movers, watching(movers) as (watch, _):
        await movers.sleepers(3)
        await movers.due()
        assert await watch.look() == []
        assert watch.notes == []
        assert await told(movers) == []


async def test_when_nobody_archives_one_notice_says_so_and_a_note_as_long_as_it_lasts(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with (
        open_movers(store_server, tmp_path) as movers,
        watching(movers) as (watch, nodes),
        watching(movers) as (other, _),
    ):
        await nodes.register(NodeRecord(node_group="master", node_id="nodeId-" + "a" * 40))
        await five_minutes_late(movers)
        await asyncio.gather(watch.look(), other.look())
        note = "Transactions wait for 5 min to be archived: no living node archives, since"
        assert watch.notes == other.notes == [f"{note} archive_batch is 0 for all of them."]
        assert await told(movers) == [("unarchived", watch.notes[0])]
        # An hour later it is told again.
        await movers.tx.machine.advance(3600)
        await movers.tx.store.call("DEL", names.told("archive"))
        await watch.look()
        assert len(await told(movers)) == 2
        # All is well once somebody does it.
        movers.archiver()
        await movers.drained()
        assert await watch.look() == []


async def test_the_error_of_the_archive_is_told_where_somebody_tries(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with (
        open_movers(store_server, tmp_path) as movers,
        watching(movers, error="no route to it") as (watch, nodes),
    ):
        nodes.archives = lambda: True
        await nodes.register(NodeRecord(node_group="master", node_id="nodeId-" + "a" * 40))
        await five_minutes_late(movers)
        await watch.look()
        text = "Transactions wait for 5 min to be archived: "
        assert await told(movers) == [("unarchived", f"{text}no route to it.")]
        # A client without a key reads the notes in `/readyz`.
        assert watch.notes == [f"{text}the archive fails; the server log shows why."]


async def test_states_that_were_set_aside_are_told_with_their_number(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_movers(store_server, tmp_path) as movers, watching(movers) as (watch, _):
        await movers.sleepers(3)
        await movers.due()
        turn = await movers.tx.archiving.turn(CELL, node="n", most=2)
        refused = [Confirmed(each.id, 3, turn.now_ms, cause="no") for each in turn.items]
        await movers.tx.archiving.turn(CELL, node="n", most=0, confirmed=refused)
        await watch.look()
        text = "The archive refuses 2 transactions; they were set aside."
        assert watch.notes == [text]
        assert await told(movers) == [("set-aside", text)]
        await watch.count()
        assert metrics.archive_set_aside._value.get() == 2
        assert metrics.archive_waiting._value.get() == 3
        watch.stop_counting()
        assert metrics.archive_waiting._value.get() == 0


async def test_replies_that_nobody_sends_are_told(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_movers(store_server, tmp_path) as movers, watching(movers) as (watch, nodes):
        lanes = names.sorted_set(CELL, "webhookLanesZ")
        await movers.tx.store.call("ZADD", lanes, 1, "lane-1", 1, "lane-2")
        await nodes.register(NodeRecord(node_group="master", node_id="nodeId-" + "a" * 40))
        await watch.look()
        text = "Replies for 2 receivers wait, and no living node sends any."
        assert await told(movers) == [("unsent", text)]
        assert watch.notes == [text]
        nodes.webhook_workers = lambda: 5
        await nodes.register(NodeRecord(node_group="master", node_id="nodeId-" + "a" * 40))
        assert await watch.look() == []


async def test_the_url_of_the_administrators_gets_the_notice(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with (
        FakeEndpoint() as endpoint,
        open_movers(store_server, tmp_path) as movers,
        watching(movers, notice_url=endpoint.url) as (watch, _),
    ):
        await five_minutes_late(movers)
        await watch.start()
        async with asyncio.timeout(10):
            while not endpoint.received:
                await asyncio.sleep(0.005)
        assert b"waystation.delivery.unarchived" in endpoint.received[0].body
        # The next look tells nobody again.
        await movers.tx.machine.advance(LOOK_SECONDS + 1)
        await asyncio.sleep(0.1)
        assert len(endpoint.received) == 1
