"""Reserve, then acknowledge: no message is lost after it was taken, and none overtakes another."""

from __future__ import annotations

import pytest

from tests.pools.pool_slot import LEASE_MS, PLACE, open_pool_slot
from waystation.errors import InvalidInputError, StoreError
from waystation.pools.held import Nack, Taken
from waystation.store.embedded.server import EmbeddedServer


async def test_one_message_of_a_key_is_given_out_at_a_time(store_server: EmbeddedServer) -> None:
    async with open_pool_slot(store_server) as slot:
        await slot.register("a")
        await slot.send_all("k", "k", "x")
        taken = await slot.take("a")
        assert [(each.key, each.number) for each in taken] == [("k", 1), ("x", 3)]
        assert await slot.take("a") == []
        assert len(await slot.queue("k")) == 2, "taking removes nothing"
        await slot.ack("a", *taken)
        assert (await slot.take_one("a")).number == 2
        await slot.check()


async def test_the_next_of_a_key_comes_with_the_acknowledgement(
    store_server: EmbeddedServer,
) -> None:
    async with open_pool_slot(store_server) as slot:
        await slot.register("a")
        for data in ("one", "two", "three"):
            await slot.send("k", data)
        taken, found = await slot.take_one("a"), []
        following: Taken | None = taken
        while following is not None:
            found.append(following.packed)
            (acked,) = await slot.ack("a", following, next_lease_ms=LEASE_MS)
            assert acked.outcome == "done"
            following = acked.next
            await slot.check()
        assert found == [b"one", b"two", b"three"]


async def test_the_oldest_comes_first_and_no_more_than_is_wanted(
    store_server: EmbeddedServer,
) -> None:
    async with open_pool_slot(store_server) as slot:
        await slot.register("a")
        for key in ("z", "y", "x"):
            await slot.send(key, "12345")
            await slot.later(0.1)
        assert [each.key for each in await slot.take("a", most=1)] == ["z"]
        limits = {"most": 9, "bytes_max": 5, "lease_ms": 1000}
        session = slot.sessions["a"]
        small = await slot.mail.take(PLACE, slot.terms, session, token="t", **limits)
        assert ([each.key for each in small.items], small.next_ms) == (["y"], 0)
        slot.use(taken_max=2)
        assert await slot.take("a") == []
        slot.use(taken_max=3)
        assert [each.key for each in await slot.take("a")] == ["x"]


async def test_a_lease_that_is_over_is_a_crash_and_the_message_stays_the_first(
    store_server: EmbeddedServer,
) -> None:
    async with open_pool_slot(store_server, stale_ms=10**6) as slot:
        await slot.register("a")
        await slot.send_all("k", "k")
        taken = await slot.take_one("a")
        await slot.later(29)
        assert await slot.mail.renew(
            PLACE, slot.terms, slot.sessions["a"], [taken], lease_ms=LEASE_MS
        ) == []  # fmt: skip
        await slot.later(29)
        assert await slot.take("a") == []
        await slot.later(2)
        again = await slot.take_one("a")
        assert (again.number, again.tries, again.crashes) == (1, 1, 1)
        assert await slot.outcome("a", taken) == "lost"
        assert await slot.mail.renew(
            PLACE, slot.terms, slot.sessions["a"], [taken], lease_ms=1
        ) == ["k"]  # fmt: skip
        await slot.later(31)
        assert (await slot.sweep()).freed == 1
        await slot.check()
        assert (await slot.take_one("a")).crashes == 2


async def test_a_late_acknowledgement_that_nobody_contested_is_good(
    store_server: EmbeddedServer,
) -> None:
    async with open_pool_slot(store_server, stale_ms=10**6) as slot:
        await slot.register("a")
        await slot.send("k")
        taken = await slot.take_one("a")
        await slot.later(100)
        assert await slot.outcome("a", taken) == "done"
        assert await slot.outcome("a", taken) == "known"
        await slot.check()


async def test_a_nack_waits_at_the_head_and_nothing_of_its_key_passes_it(
    store_server: EmbeddedServer,
) -> None:
    async with open_pool_slot(store_server) as slot:
        await slot.register("a")
        await slot.send_all("k", "k", "x")
        first, other = await slot.take("a")
        assert await slot.nack("a", first, wait_ms=5000) == "done"
        look = await slot.assignments.look_at(PLACE, slot.terms, "k")
        assert look is not None
        assert (look.state, look.tries, look.pending) == ("delayed", 1, 2)
        assert await slot.outcome("a", other) == "done"
        limits = {"most": 9, "bytes_max": 5, "lease_ms": 1000}
        session = slot.sessions["a"]
        none = await slot.mail.take(PLACE, slot.terms, session, token="t", **limits)
        assert none.items == []
        assert 4000 < none.next_ms <= 5000
        await slot.later(5)
        again = await slot.take_one("a")
        assert (again.number, again.tries, again.crashes) == (1, 1, 0)
        assert await slot.nack("a", again, "release") == "done"
        assert (await slot.take_one("a")).tries == 1
        await slot.check()


async def test_after_its_last_try_a_message_is_a_dead_letter_and_its_key_goes_on(
    store_server: EmbeddedServer,
) -> None:
    async with open_pool_slot(store_server, attempts=3, dead_max=2) as slot:
        await slot.register("a")
        for data in ("poison", "good"):
            await slot.send("k,ü", data)
        outcomes = [await slot.nack("a", await slot.take_one("a"), cause="no") for _ in range(3)]
        assert outcomes == ["done", "done", "dead"]
        assert (await slot.take_one("a")).packed == b"good"
        (letter,) = (await slot.hash("dead")).values()
        # Of the crash counts none, since it was given back each time.
        assert letter.split(" ")[1:3] == ["3", "0"]
        assert letter.endswith(" k,ünopoison")
        for i in range(3):
            await slot.send("more", str(i))
            taken = next(each for each in await slot.take("a") if each.key == "more")
            assert await slot.nack("a", taken, "dead") == "dead"
            await slot.later(0.1)
        assert len(await slot.hash("dead")) == len(await slot.scores("failed")) == 2
        assert (await slot.assignments.look(PLACE, slot.terms)).dropped == 2
        await slot.check()


async def test_a_message_that_kills_its_workers_is_a_dead_letter_after_its_last_try(
    store_server: EmbeddedServer,
) -> None:
    """F-18: a crash counts as an attempt."""
    async with open_pool_slot(store_server, attempts=3) as slot:
        await slot.register("w0")
        await slot.send_all("k", "k")
        for i in range(3):
            taken = await slot.take_one(f"w{i}")
            assert (taken.number, taken.crashes) == (1, i)
            await slot.register(f"w{i + 1}")
            await slot.later(10)
            await slot.beat(f"w{i + 1}")
            await slot.later(6)
            assert (await slot.sweep()).evicted == [f"w{i}"]
        assert (await slot.take_one("w3")).number == 2
        assert list(await slot.hash("dead")) == ["1"]
        await slot.check()


async def test_a_token_of_another_take_settles_nothing(store_server: EmbeddedServer) -> None:
    async with open_pool_slot(store_server) as slot:
        await slot.register("a", "b")
        await slot.send("k")
        taken = await slot.take_one("a")
        before = (await slot.slot())["keys"]
        for word, value in (("token", "x"), ("epoch", taken.epoch + 1), ("number", 99)):
            fields = {each: getattr(taken, each) for each in taken.__struct_fields__}
            wrong = Taken(**{**fields, word: value})
            assert await slot.outcome("a", wrong) == "lost"
            assert await slot.nack("a", wrong) == "lost"
        assert await slot.outcome("b", taken) == "lost"
        assert (await slot.slot())["keys"] == before
        assert await slot.outcome("a", taken) == "done"


async def test_a_bad_verdict_or_time_is_refused_before_anything_is_written(
    store_server: EmbeddedServer,
) -> None:
    """F-19: one bad item, and none is settled."""
    async with open_pool_slot(store_server) as slot:
        await slot.register("a")
        await slot.send_all("k", "x")
        good, bad = await slot.take("a")
        before, session = await slot.slot(), slot.sessions["a"]
        items = [Nack(taken=good), Nack(taken=bad, verdict="maybe")]  # type: ignore[arg-type]
        with pytest.raises(StoreError, match="no such verdict"):
            await slot.mail.nack(PLACE, slot.terms, session, items)
        with pytest.raises(InvalidInputError):
            await slot.nack("a", good, wait_ms=-1)
        assert await slot.slot() == before


async def test_a_key_is_forgotten_when_it_had_no_message_for_its_retention(
    store_server: EmbeddedServer,
) -> None:
    async with open_pool_slot(store_server, stale_ms=10**9) as slot:
        await slot.register("a")
        first = (await slot.send("idle")).epoch
        await slot.send("pending")
        await slot.ack("a", *[each for each in await slot.take("a") if each.key == "idle"])
        await slot.later(50)
        assert (await slot.sweep(retention_ms=60_000)).forgotten == 0
        await slot.later(20)
        assert (await slot.sweep(retention_ms=60_000)).forgotten == 1
        await slot.check()
        assert (await slot.owner("idle"), await slot.owner("pending")) == ("", "a")
        assert (await slot.send("idle")).epoch > first, "an epoch is never used twice"


async def test_a_silent_worker_without_messages_is_forgotten_in_the_end(
    store_server: EmbeddedServer,
) -> None:
    async with open_pool_slot(store_server) as slot:
        await slot.register("a", "b")
        await slot.send("k")
        await slot.ack("a", await slot.take_one("a"))
        await slot.later(3000)
        await slot.beat("b")
        await slot.sweep()
        assert await slot.owner("k") == "a"
        await slot.later(1000)
        await slot.beat("b")
        await slot.sweep()
        assert (await slot.check())["workers"].keys() == {"b"}
        assert (await slot.send("k")).owner == "b"
