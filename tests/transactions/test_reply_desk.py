"""The desk of replies: what waits, what was given up, and each project's own alone."""

from __future__ import annotations

import pytest

from tests.helpers.waiting import eventually
from tests.transactions.replying import QUICK, Replying, lane, replying
from waystation.errors import InvalidInputError, TransactionUnknownError
from waystation.store.embedded.server import EmbeddedServer
from waystation.testing.endpoint import FakeEndpoint
from waystation.transactions.reply_desk import ReplyRow
from waystation.transactions.reply_lanes import receiver_of


async def failed(running: Replying, project: str = "default") -> list[ReplyRow]:
    rows, _ = await running.desk.page(project, state="failed", cursor="", limit=100)
    return rows


async def give_up(running: Replying, receiver: FakeEndpoint, count: int) -> list[str]:
    """So many transactions whose receiver never liked them."""
    ids = [await running.ended(receiver.url) for _ in range(count)]

    async def all_failed() -> bool:
        return len(await failed(running)) == count

    await eventually(all_failed)
    return ids


async def test_pages_of_what_was_given_up_go_on_where_the_last_one_ended(
    store_server: EmbeddedServer,
) -> None:
    async with FakeEndpoint(plan=[404]) as receiver, replying(store_server) as running:
        ids = await give_up(running, receiver, 5)

        seen: list[str] = []
        cursor = ""
        while True:
            rows, cursor = await running.desk.page(
                "default", state="failed", cursor=cursor, limit=2
            )
            seen += [each.transaction_id for each in rows]
            if not cursor:
                break
        assert sorted(seen) == sorted(ids)
        assert await failed(running, "acme") == [], "another project sees nothing of it"
        with pytest.raises(InvalidInputError):
            await running.desk.page("default", state="failed", cursor="x~", limit=2)


async def test_what_waits_is_shown_with_its_receiver_and_next_attempt(
    store_server: EmbeddedServer,
) -> None:
    async with replying(store_server, start=False) as running:
        transaction_id = await running.ended("https://crm.example/hook", channel="orders")
        rows, _ = await running.desk.page("default", state="waiting", cursor="", limit=9)

        assert [(each.transaction_id, each.event) for each in rows] == [
            (transaction_id, "complete"),
            (transaction_id, "complete"),
        ]
        assert {each.receiver for each in rows} == {
            "c.default.orders",
            receiver_of("default", "w", "https://crm.example/hook"),
        }
        assert all(each.at_ms > 0 and each.state == "waiting" for each in rows)
        others = await running.desk.page("acme", state="waiting", cursor="", limit=9)
        assert others == ([], "")


async def test_one_or_all_are_sent_again_and_the_rest_stays(store_server: EmbeddedServer) -> None:
    async with FakeEndpoint(plan=[404]) as receiver, replying(store_server) as running:
        ids = await give_up(running, receiver, 4)
        receiver.plan = [200]

        with pytest.raises(TransactionUnknownError):
            await running.desk.redrive("acme", ids[0])
        assert await running.desk.redrive("default", ids[0]) == 1
        await running.until_empty(lane(receiver.url))
        assert {each.transaction_id for each in await failed(running)} == set(ids[1:])
        assert await running.desk.redrive("default") == 3
        await running.until_empty(lane(receiver.url))
        assert await failed(running) == []
        assert len([each for each in receiver.received if each.status == 200]) == 4


async def test_a_reply_can_be_taken_back_whether_it_failed_or_waits(
    store_server: EmbeddedServer,
) -> None:
    async with FakeEndpoint(plan=[404]) as receiver, replying(store_server) as running:
        ids = await give_up(running, receiver, 3)
        assert await running.desk.discard("default", ids[0]) == 1
        assert await running.desk.discard("default") == 2
        assert await failed(running) == []
    async with replying(store_server, start=False) as running:
        waits = await running.ended("https://crm.example/hook", topic="events")
        with pytest.raises(TransactionUnknownError):
            await running.desk.discard("acme", waits)
        assert await running.desk.discard("default", waits) == 2
        assert await running.tx.store.call("EXISTS", "{tx.0}:webhookH") == 0


@pytest.mark.slow
async def test_attempts_are_told_to_the_owner_alone(store_server: EmbeddedServer) -> None:
    async with FakeEndpoint(plan=[500]) as receiver, replying(store_server, QUICK) as running:
        (transaction_id, other) = await give_up(running, receiver, 2)
        attempts = await running.desk.attempts("default", transaction_id)

        assert [each.attempt for each in attempts] == [1, 2, 3]
        assert other not in {each.id for each in attempts}
        with pytest.raises(TransactionUnknownError):
            await running.desk.attempts("acme", transaction_id)
