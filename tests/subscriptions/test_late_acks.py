"""Late acknowledgements: `done`, for what has become a dead letter meanwhile, changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.subscriptions.shard_slot import PLACE, ShardSlot, ended, main, open_shard_slot
from tests.subscriptions.test_take import offer, settle, take
from waystation.store.embedded.server import EmbeddedServer
from waystation.subscriptions.held import Settlement
from waystation.subscriptions.operating import RedriveStep
from waystation.subscriptions.states import GroupState

CLEAN, PARKED = GroupState.CLEAN, GroupState.PARKED


async def dies_at_once(slot: ShardSlot, group: str = "g") -> Settlement:
    """A message of the topic; others are behind it."""
    await slot.commit(main(0, group, "dead"), main(1, group, "behind"))
    return main(0, group)


async def dies_in_retry(slot: ShardSlot, count: int = 3) -> Settlement:
    """The head of a group that retries."""
    await slot.retrying(count)
    (head,) = await slot.heads()
    await slot.one(ended(head.member, verdict="dead"))
    return ended(head.member)


async def dies_again(slot: ShardSlot) -> Settlement:
    """A dead letter that was redriven."""
    await slot.parked(2)
    member = await slot.redriven()
    await slot.heads()
    await slot.one(ended(member, verdict="dead"))
    return ended(member)


async def dies_alone(slot: ShardSlot) -> Settlement:
    """Of a group that goes on without it."""
    slot.use(policy="skip")
    return await dies_in_retry(slot)


async def dies_alone_again(slot: ShardSlot) -> Settlement:
    """A dead letter without a group that was redriven."""
    await slot.one(main(0, "", "dead"))
    step = RedriveStep(operation="op", upto=1, failed_before_ms=0)
    assert (await slot.operating.redrive(PLACE, step)).messages == 1
    (head,) = await slot.heads()
    await slot.one(ended(head.member, "", "dead"))
    return ended(head.member, "")


DEATHS: dict[str, Callable[[ShardSlot], Awaitable[Settlement]]] = {
    "at once": dies_at_once,
    "at once, without a group": lambda slot: dies_at_once(slot, ""),
    "in retry": dies_in_retry,
    "in retry, the rest still follows": lambda slot: dies_in_retry(slot, 300),
    "redriven": dies_again,
    "alone": dies_alone,
    "alone, redriven": dies_alone_again,
}


@pytest.mark.parametrize("death", DEATHS)
async def test_a_dead_letter_that_is_acknowledged_too_late_stays_one(
    store_server: EmbeddedServer, death: str
) -> None:
    """F-25: it is told as known, and neither settled nor written down once more."""
    async with open_shard_slot(store_server) as slot:
        late = await DEATHS[death](slot)
        before, facts = await slot.everything(), await slot.facts()
        assert before[0]["dead"], "there is a dead letter"
        for heads in (True, False):
            settled = await slot.one(late, heads=heads)
            assert (settled.outcome, settled.next) == ("known", None)
        assert await slot.everything() == before
        assert await slot.facts() == facts


@pytest.mark.parametrize("death", ["at once", "in retry"])
async def test_of_death_and_acknowledgement_in_one_commit_the_first_one_counts(
    store_server: EmbeddedServer, death: str
) -> None:
    """F-25."""
    async with open_shard_slot(store_server) as slot:
        if death == "at once":
            dead, done = main(0, verdict="dead"), main(0)
        else:
            await slot.retrying(1)
            (head,) = await slot.heads()
            dead, done = ended(head.member, verdict="dead"), ended(head.member)
        first, second = await slot.commit(dead, done)
        assert (first.outcome, second.outcome) == ("done", "known")
        assert (first.state, second.state) == (PARKED, PARKED)
        assert set(await slot.hash("dead")) == {"1"}
        assert [fact.kind for fact in await slot.facts()].count("parked") == 1
        assert not [fact for fact in await slot.facts() if fact.now == "-"]


async def test_a_worker_that_has_given_up_a_message_cannot_acknowledge_it_any_more(
    store_server: EmbeddedServer,
) -> None:
    """F-25: the token of its take ended with the message."""
    async with open_shard_slot(store_server) as slot:
        await slot.retrying(1, "r", first=5)
        (head,) = await slot.heads()
        await offer(slot, "m0.0.0", head.member)
        assert await take(slot, "a") == ["m0.0.0", head.member]
        both = [("m0.0.0", "g"), (head.member, "r")]
        gave_up = (
            main(0, verdict="dead", token="a"),
            ended(head.member, "r", "dead", token="a"),
        )
        assert {each.outcome for each in (await settle(slot, *gave_up)).items} == {"done"}
        before = await slot.everything()
        for token in ("a", "b"):
            late = [ended(member, group, token=token) for member, group in both]
            told = (await settle(slot, *late)).items
            assert [each.outcome for each in told] == ["known", "known"]
        assert await slot.everything() == before


async def test_whoever_acknowledges_while_it_is_redriven_a_message_is_settled_once(
    store_server: EmbeddedServer,
) -> None:
    """F-25: what is on its way again is not settled under its former names."""
    async with open_shard_slot(store_server) as slot:
        await slot.one(main(0, verdict="again"))
        (head,) = await slot.heads()
        await slot.one(ended(head.member, verdict="dead"))
        redriven = await slot.redriven()
        former = [main(0), ended(head.member)]
        for when in ("marked", "taken", "delivered"):
            if when == "taken":
                assert [each.member for each in await slot.heads()] == [redriven]
            if when == "delivered":
                assert (await slot.one(ended(redriven))).state is CLEAN
                former.append(ended(redriven))
            before = await slot.everything()
            assert {each.outcome for each in await slot.commit(*former)} == {"known"}
            assert await slot.everything() == before, when
        (fact,) = [fact for fact in await slot.facts() if fact.now == "-"]
        assert (fact.was, fact.verdict) == ("d1", "done")
        assert (await slot.hash("ops"))["op:settled"] == "1"
        assert await slot.low() == 1
