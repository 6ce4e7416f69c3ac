"""Notes about replies: who was told the end first, and what became of a webhook."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from tests.helpers.store_faults import Fate, proxy_to, store_at
from tests.transactions.archive_helpers import Shelf
from tests.transactions.engine_helpers import waiting_events, word
from tests.transactions.helpers import (
    ARCHIVE_MS,
    CELL,
    TERMS,
    TransactionStore,
    open_transactions,
)
from waystation.delivery.outbox import Outbox
from waystation.delivery.request import Outcome
from waystation.delivery.schedule import Decision, Verdict
from waystation.errors import TransactionUnknownError
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions import names
from waystation.transactions.held import Held
from waystation.transactions.progress import Finish, Sleep
from waystation.transactions.reply_lanes import ReplyLayout, failed_list, item_hash, lane_of
from waystation.transactions.signals import Signals
from waystation.transactions.states import Status


async def complete(tx: TransactionStore, reply: str = "") -> Held:
    """One that has ended."""
    held = await tx.running(reply=reply)
    end = Finish(held=held, state=b"e", status=Status.SUCCESS, output=b"1")
    await tx.progress.finish(CELL, [end])
    return held


async def written(tx: TransactionStore, transaction_id: str) -> object:
    """All that a note may change."""
    line = await tx.store.call("HGET", names.state(transaction_id), "head")
    facts, picture = await tx.facts(), await tx.picture()
    return line, await tx.fields(transaction_id), len(facts), picture.sets["toArchiveZ"]


async def note(
    signals: Signals,
    transaction_id: str,
    status: Literal["delivered", "failed"],
    cause: str = "",
) -> None:
    await signals.note_replies(CELL, [(transaction_id, status, cause)])


# -- Long polls ------------------------------------------------------------------------------


async def test_the_first_poll_that_tells_the_end_is_noted_and_no_other(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        one = (await complete(tx)).id
        before = await tx.head(one)
        await tx.machine.advance(1)
        now = await tx.now_ms()
        replied = await tx.signals.replied("default", one)
        assert replied.outcome == "done"
        assert replied.notified_ms is not None
        assert now <= replied.notified_ms <= await tx.now_ms()
        head = await tx.head(one)
        assert (replied.version, head.version) == (before.version + 1, before.version + 1)
        assert head.since == before.since, "it has ended when it has ended"
        assert (await tx.fields(one))["notifiedTime"] == str(replied.notified_ms).encode()
        assert await tx.kinds(one) == ["started", "finished", "notified"]
        due = (await tx.check()).sets["toArchiveZ"][one]
        assert due == replied.notified_ms + ARCHIVE_MS
        picture = await written(tx, one)
        await tx.machine.advance(1)
        again = await tx.signals.replied("default", one)
        assert (again.outcome, again.notified_ms) == ("known", replied.notified_ms)
        assert await written(tx, one) == picture


async def test_what_is_alive_unknown_or_of_another_is_not_noted(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        alive, over = await tx.running(reply=word("k")), await complete(tx)
        pictures = [await written(tx, each.id) for each in (alive, over)]
        replied = await tx.signals.replied("default", alive.id)
        assert (replied.outcome, replied.notified_ms) == ("alive", None)
        for owner, transaction_id in (("other", over.id), ("default", "tx-0000" + "f" * 36)):
            with pytest.raises(TransactionUnknownError):
                await tx.signals.replied(owner, transaction_id)
        assert [await written(tx, each.id) for each in (alive, over)] == pictures


async def test_a_note_whose_reply_was_lost_is_made_once(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx, proxy_to(store_server.address) as proxy:
        one = (await complete(tx, word("k"))).id
        async with store_at(proxy.address, test_mode=True) as store:
            await store.ping()
            await proxy.set_fates(replies=Fate.CUT)
            asked = Signals(store, TERMS).replied("default", one)
            replying = asyncio.ensure_future(asked)
            await proxy.met.wait()
            await proxy.set_fates()
            replied = await replying
        assert (replied.outcome, replied.notified_ms is not None) == ("known", True)
        assert await tx.kinds(one) == ["started", "finished", "notified"]


async def test_a_poll_takes_the_webhook_back_where_that_was_asked_for(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        cancels = (await complete(tx, word("k", channel="orders", topic="refunds"))).id
        stays = (await complete(tx, word())).id
        for each in (cancels, stays):
            await tx.signals.replied("default", each)
        events = await waiting_events(tx.store)
        assert sorted(events) == sorted([f"{cancels}.c", f"{cancels}.t", stays])
        kept = await tx.store.call("HKEYS", item_hash(CELL))
        assert sorted(kept) == sorted(each.encode() for each in events)


async def test_an_attempt_under_way_is_not_called_back_and_settles_nothing(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        one = (await complete(tx, word("k"))).id
        outbox, lane = Outbox(tx.store, ReplyLayout(1)), lane_of(CELL, word().split(" ")[1])
        claim = await outbox.claim(lane, most=1, claim_ms=10_000, token="mine")
        await tx.signals.replied("default", one)
        assert await waiting_events(tx.store) == {}
        later = Decision(Verdict.RETRY, 1.0, "away")
        await outbox.settle(lane, claim.items[0], later, Outcome(status=503), at_ms=0)
        assert await waiting_events(tx.store) == {}
        assert await tx.store.call("EXISTS", item_hash(CELL)) == 0


async def test_a_webhook_that_was_given_up_is_not_taken_back(store_server: EmbeddedServer) -> None:
    """It is with the administrators by then; nothing of it may be half gone."""
    async with open_transactions(store_server) as tx:
        one = (await complete(tx, word("k"))).id
        outbox, lane = Outbox(tx.store, ReplyLayout(1)), lane_of(CELL, word().split(" ")[1])
        claim = await outbox.claim(lane, most=1, claim_ms=10_000, token="mine")
        failed = Decision(Verdict.FAILED, 0.0, "gone")
        await outbox.settle(lane, claim.items[0], failed, Outcome(status=500), at_ms=0)
        await tx.signals.replied("default", one)
        listed = await tx.store.call("ZRANGE", failed_list(CELL, "default"), 0, -1)
        assert listed == [one.encode()]
        assert await tx.store.call("HGET", item_hash(CELL), one) is not None


async def test_a_note_about_what_the_archive_has_is_archived_once_more(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        one = (await complete(tx)).id
        await tx.machine.advance(ARCHIVE_MS / 1000 + 1)
        await shelf.archive()
        assert await tx.store.call("PTTL", names.state(one)) > 0
        replied = await tx.signals.replied("default", one)
        assert await tx.store.call("PTTL", names.state(one)) == -1
        await tx.check()
        await tx.machine.advance(ARCHIVE_MS / 1000 + 1)
        await shelf.archive()
        assert shelf.head(one).version == replied.version
        assert b"notifiedTime" in shelf.rows[one]


async def test_what_is_in_the_archive_alone_is_brought_back_for_the_note(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        one = (await complete(tx)).id
        await tx.machine.advance(ARCHIVE_MS / 1000 + 1)
        await shelf.archive()
        await tx.store.call("DEL", names.state(one))
        signals = Signals(tx.store, TERMS, shelf)
        assert (await signals.replied("default", one)).outcome == "done"
        assert (await signals.replied("default", one)).outcome == "known"
        assert shelf.brought == [(one,)]


# -- Webhooks --------------------------------------------------------------------------------


async def test_what_became_of_a_webhook_is_in_the_state_that_it_told_of(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        one = (await complete(tx, word())).id
        await note(tx.signals, one, "failed", "503")
        fields = await tx.fields(one)
        assert (fields["webhook_status"], fields["webhook_comment"]) == (b"failed", b"503")
        assert "notifiedTime" not in fields
        picture = await written(tx, one)
        await tx.machine.advance(1)
        await note(tx.signals, one, "failed", "503")
        assert await written(tx, one) == picture, "the same again is no news"
        await note(tx.signals, one, "delivered")
        fields = await tx.fields(one)
        assert (fields["webhook_status"], fields["webhook_comment"]) == (b"delivered", b"")
        assert fields["webhook_latest"] == fields["notifiedTime"]
        assert await tx.kinds(one) == ["started", "finished", "notified", "notified"]
        await tx.check()
        (fact,) = [each for each in await tx.facts() if each.cause == "failed: 503"]
        assert fact.kind == "notified"


async def test_who_was_told_before_stays_the_first(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        polled, hooked = (await complete(tx, word())).id, (await complete(tx, word())).id
        replied = await tx.signals.replied("default", polled)
        await note(tx.signals, hooked, "delivered")
        first = (await tx.fields(hooked))["notifiedTime"]
        await tx.machine.advance(1)
        await note(tx.signals, polled, "delivered")
        assert (await tx.fields(polled))["notifiedTime"] == str(replied.notified_ms).encode()
        assert (await tx.signals.replied("default", hooked)).notified_ms == int(first)


async def test_notes_of_one_call_do_not_hinder_each_other(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        first, second = (await complete(tx, word())).id, (await complete(tx, word())).id
        nobody = "tx-0000" + "f" * 36
        await tx.signals.note_replies(
            CELL,
            [(first, "failed", "503"), (nobody, "delivered", ""), (second, "delivered", "")],
        )
        assert (await tx.fields(first))["webhook_status"] == b"failed"
        assert (await tx.fields(second))["webhook_status"] == b"delivered"
        assert await tx.store.call("EXISTS", names.state(nobody)) == 0
        await tx.check()


async def test_a_note_about_what_is_alive_leaves_it_as_it_is(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        held, asleep = await tx.running(reply=word("p")), await shelf.sleeper(reply=word("s"))
        signals = Signals(tx.store, TERMS, shelf)
        await note(signals, asleep, "failed", "gone")
        assert await tx.store.call("EXISTS", names.state(asleep)) == 0, "it was only a note"
        await signals.get("default", [asleep])
        for each in (held.id, asleep):
            await note(signals, each, "failed", "away")
        picture = await tx.check()
        assert held.id not in picture.sets["toArchiveZ"]
        assert asleep in picture.sets["toArchiveZ"]
        sleep = Sleep(held=held, state=b"s", delay_ms=1)
        (verdict,) = await tx.progress.sleep(CELL, [sleep])
        assert verdict.outcome == "waiting", "its holder does not notice"
        assert "notifiedTime" not in await tx.fields(held.id)


async def test_in_a_full_store_notes_are_made(store_server: EmbeddedServer) -> None:
    """F-20: they make room, as the webhook goes and the archive is due."""
    async with open_transactions(store_server) as tx:
        first, second = (await complete(tx, word("k"))).id, (await complete(tx, word())).id
        await tx.store.call("CONFIG", "SET", "maxmemory", 1)
        try:
            assert (await tx.signals.replied("default", first)).outcome == "done"
            await note(tx.signals, second, "delivered")
        finally:
            await tx.store.call("CONFIG", "SET", "maxmemory", 0)
        assert list(await waiting_events(tx.store)) == [second]


async def test_a_long_cause_is_cut_and_a_state_that_is_none_is_left_alone(
    store_server: EmbeddedServer,
) -> None:
    """F-19."""
    async with open_transactions(store_server) as tx:
        one = (await complete(tx, word())).id
        await note(tx.signals, one, "failed", "ü" * 100_000)
        assert (await tx.fields(one))["webhook_comment"].decode() == "ü" * 500
        await tx.facts()
        odd = "tx-0000" + "e" * 36
        await tx.store.call("SET", names.state(odd), "not a hash")
        await note(tx.signals, odd, "failed", "x")
        with pytest.raises(TransactionUnknownError):
            await tx.signals.replied("default", odd)
