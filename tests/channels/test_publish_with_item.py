"""One message with its webhooks: the same as a batch of one, and no more wake-ups than needed."""

from __future__ import annotations

import asyncio

from tests.channels.helpers import ChannelStore, open_channels
from waystation.config import ChannelRule, WebhookRule
from waystation.delivery.outbox import Outbox
from waystation.store.embedded.server import EmbeddedServer

RULES = (
    ChannelRule(
        pattern=".*",
        webhooks=(
            WebhookRule(name="crm", url="https://crm.example/hook"),
            WebhookRule(name="log", url="https://log.example/hook"),
        ),
    ),
)
LANES = ("c.{%s}.out.crm", "c.{%s}.out.log")


async def items(opened: ChannelStore, channel: str) -> list[list[tuple[str, bytes]]]:
    """What waits in each lane: ids without their time, and bodies."""
    found = []
    for lane in LANES:
        outbox = Outbox(opened.store)
        claim = await outbox.claim(lane % channel, most=10, claim_ms=60_000, token="t")
        found.append([(each.id.rpartition(".")[0], each.packed) for each in claim.items])
    return found


async def test_a_single_publish_leaves_what_a_batch_of_one_leaves(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server, rules=RULES) as opened:
        # Given the same messages, published one by one and as batches of one
        for message_id in ("m-1", "m-2", "m-1"):
            await opened.channels.publish("default", "single", message_id, b'{"n":1}')
            await opened.channels.publish_many("default", "batch", [(message_id, b'{"n":1}')])

        # Then both channels have the same messages, and both lanes of each the same items
        single, batch = await items(opened, "single"), await items(opened, "batch")
        assert [[item_id for item_id, _ in lane] for lane in single] == [
            ["single.m-1", "single.m-2"]
        ] * 2
        renamed = [
            [(i.replace("batch", "single"), b.replace(b"batch", b"single")) for i, b in lane]
            for lane in batch
        ]
        assert single == renamed
        assert await opened.number("c.{single}.clock") == 2
        assert await opened.number("c.{batch}.clock") == 2


async def test_a_duplicate_has_the_clock_of_the_first_and_sends_nothing(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server, rules=RULES) as opened:
        first = await opened.channels.publish("default", "orders", "m-1", b"1")
        again = await opened.channels.publish("default", "orders", "m-1", b"2")

        assert (first.clock, first.duplicate) == (1, False)
        assert (again.clock, again.duplicate) == (1, True)
        assert [len(lane) for lane in await items(opened, "orders")] == [1, 1]


async def test_many_first_publishes_at_once_find_the_gates_closed_and_all_are_kept(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server, rules=RULES) as opened:
        await asyncio.gather(
            *(opened.channels.publish("default", "orders", f"m-{n}", b"1") for n in range(10))
        )

        assert [len(lane) for lane in await items(opened, "orders")] == [10, 10]
        assert set(await Outbox(opened.store).lanes()) == {lane % "orders" for lane in LANES}


async def test_deliverers_are_woken_for_what_is_due_first_and_not_for_what_comes_behind(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server, rules=RULES) as opened:
        outbox, lane = Outbox(opened.store), LANES[0] % "orders"
        await opened.channels.publish("default", "orders", "m-0", b"1")
        await outbox.claim(lane, most=10, claim_ms=60_000, token="t")
        with opened.wakeups.waiting(f"{lane}.wake".encode()) as waiter:
            await waiter.wait(5)  # The subscription has taken effect.

            # When a message comes while all before it are claimed: it wakes
            waiter.clear()
            await opened.channels.publish("default", "orders", "m-1", b"1")
            await asyncio.wait_for(waiter.wait(9), 5)

            # And when others come behind it: deliverers know already that something is due
            await next_millisecond(opened)
            before = await published(opened)
            await opened.channels.publish("default", "orders", "m-2", b"1")
            await opened.channels.publish_many("default", "orders", [("m-3", b"1")])
            # Two messages, each told to readers of the channel; the other lane is silent as well.
            assert await published(opened) - before == 2

        # Then nothing is missed: one look finds them all
        claim = await outbox.claim(lane, most=10, claim_ms=60_000, token="t")
        assert len(claim.items) == 3


async def published(opened: ChannelStore) -> int:
    """How often anything was published to subscribers of the store."""
    stats = (await opened.store.call("INFO", "commandstats")).decode()
    (line,) = (each for each in stats.splitlines() if each.startswith("cmdstat_publish:"))
    return int(line.partition("calls=")[2].partition(",")[0])


async def next_millisecond(opened: ChannelStore) -> None:
    """What comes within one millisecond counts as due at the same time."""
    begun = await opened.store.call("TIME")
    while (await opened.store.call("TIME"))[1][:-3] == begun[1][:-3]:
        await asyncio.sleep(0)


async def test_a_lane_with_something_in_its_inbox_is_not_retired(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server, rules=RULES) as opened:
        outbox, lane = Outbox(opened.store), LANES[0] % "orders"
        await opened.channels.publish("default", "orders", "m-1", b"1")
        registered = await outbox.registration(lane)

        # While it waits untried, and while it is claimed, the lane stays open and registered
        assert await outbox.retire(lane, registered) is False
        (claimed,) = (await outbox.claim(lane, most=5, claim_ms=60_000, token="t")).items
        assert await outbox.retire(lane, registered) is False
        assert await outbox.release(lane, claimed)
        assert await outbox.discard(lane, waiting=True, item_id=claimed.id) == 1
        assert await outbox.retire(lane, registered) is True


async def test_what_waits_untried_is_counted_bounded_and_can_be_discarded(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server, rules=RULES, waiting_max=3) as opened:
        outbox, lane = Outbox(opened.store), LANES[0] % "orders"
        for number in range(5):
            await opened.channels.publish("default", "orders", f"m-{number}", b"1")
        assert await outbox.counts([lane]) == [(3, 0, 2)]

        # One by its id, which only the one who claimed and gave back has seen; then the rest
        (claimed,) = (await outbox.claim(lane, most=1, claim_ms=60_000, token="t")).items
        assert await outbox.release(lane, claimed)
        assert await outbox.discard(lane, waiting=True, item_id="orders.m-9.1-1") == 0
        assert await outbox.discard(lane, waiting=True, item_id=claimed.id) == 1
        assert await outbox.discard(lane, waiting=True, most=1) == 1
        assert await outbox.counts([lane]) == [(1, 0, 2)]
        (last,) = (await outbox.claim(lane, most=5, claim_ms=60_000, token="t")).items
        assert last.id.startswith("orders.m-2.")


async def test_retries_come_before_what_was_never_tried(store_server: EmbeddedServer) -> None:
    async with open_channels(store_server, rules=RULES) as opened:
        outbox, lane = Outbox(opened.store), LANES[0] % "orders"
        for number in range(4):
            await opened.channels.publish("default", "orders", f"m-{number}", b"1")
        first = (await outbox.claim(lane, most=2, claim_ms=60_000, token="t")).items
        for each in first:
            assert await outbox.release(lane, each)

        claim = await outbox.claim(lane, most=3, claim_ms=60_000, token="u")

        names = [each.id.rpartition(".")[0] for each in claim.items]
        assert names == ["orders.m-0", "orders.m-1", "orders.m-2"]
        assert (claim.waiting, claim.next_ms) == (4, 0)
