"""How a message came to its end, as the record log of a real shard tells it."""

from __future__ import annotations

from tests.subscriptions.shard_slot import PLACE, ShardSlot, ended, main, open_shard_slot
from waystation.logs import keys
from waystation.store.embedded.server import EmbeddedServer
from waystation.subscriptions.log_entry import AttemptDetail, pack_detail
from waystation.subscriptions.names import Place
from waystation.subscriptions.operating import PurgeStep
from waystation.subscriptions.positions import Position
from waystation.subscriptions.trail import Ending, Trails


async def ending(slot: ShardSlot, offset: int, *, partition: int = 0) -> Ending:
    position = Position(1, 0, partition, offset)
    return await Trails(slot.logs).ending(PLACE, position, since_ms=0)


async def test_a_message_is_followed_through_retry_and_dead_letters_to_its_delivery(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        detail = pack_detail(AttemptDetail(id="m-0", group="g", node="here"))
        await slot.commit(main(9, "other", "done", detail=detail))
        await slot.commit(main(0, verdict="again"), main(1, verdict="behind"), heads=False)
        assert (await ending(slot, 0)).how == "unknown", "it has not ended"
        (head,) = await slot.heads()
        await slot.commit(ended(head.member, verdict="dead", record=head.record))
        member = await slot.redriven()
        await slot.heads()
        await slot.commit(ended(member, detail=detail), heads=False)
        found = await ending(slot, 0)
        assert (found.how, found.attempt, found.node) == ("delivered", 1, "here")
        assert found.at_ms > 0
        assert (await ending(slot, 9)).how == "delivered"
        assert (await ending(slot, 1)).how == "unknown", "it waits behind"


async def test_what_operations_settle_is_told_with_the_operation(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.parked(3)
        await slot.operating.skip(PLACE, "op-1", "g", "d1")
        await slot.operating.purge(
            PLACE, PurgeStep(operation="op-2", group="g", failed_before_ms=0)
        )
        assert (await ending(slot, 0)) == Ending(
            how="skipped", at_ms=(await ending(slot, 0)).at_ms, operation="op-1"
        )
        for offset in (1, 2):
            found = await ending(slot, offset)
            assert (found.how, found.operation) == ("purged", "op-2")


async def test_what_was_trimmed_or_lay_before_the_beginning_was_never_delivered(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        assert await slot.shard.establish(PLACE, slot.terms, {"0.1": 5}, topic="orders") is False
        assert (await ending(slot, 4, partition=1)).how == "before"
        assert (await ending(slot, 5, partition=1)).how == "unknown"
        await slot.shard.pass_over(PLACE, slot.terms, "0.0", 0, 3, "trimmed")
        assert [(await ending(slot, n)).how for n in (0, 2, 3)] == ["trimmed", "trimmed", "unknown"]


async def test_trail_over_a_hole_in_the_record_log_finds_the_end_behind_it(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.commit(main(0))
        await slot.commit(main(1))
        await slot.shard.pass_over(PLACE, slot.terms, "0.0", 2, 4, "damaged")
        stream = keys.entries(PLACE.record_log, PLACE.shard)
        entries = await slot.store.call("XRANGE", stream, "-", "+")
        await slot.store.call("XDEL", stream, entries[-3][0])
        found = [(await ending(slot, offset)).how for offset in range(5)]
        assert found == ["unknown", "delivered", "damaged", "damaged", "unknown"]


async def test_a_reset_begins_the_trail_anew(store_server: EmbeddedServer) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.commit(main(0), main(1))
        await slot.operating.reset(PLACE, 2, {"0.0": 1})
        assert (await ending(slot, 0)).how == "delivered"
        assert (await ending(slot, 1)).how == "unknown", "it is delivered anew"
        slot.use(incarnation=2)
        await slot.acquire("me")
        await slot.commit(main(1))
        assert (await ending(slot, 1)).how == "delivered"


async def test_without_a_record_log_nobody_knows(store_server: EmbeddedServer) -> None:
    async with open_shard_slot(store_server) as slot:
        nowhere = Place("default", "nobody", 0, 0)
        found = await Trails(slot.logs).ending(nowhere, Position(1, 0, 0, 0), since_ms=0)
        assert found == Ending(how="unknown")
