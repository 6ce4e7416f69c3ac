"""Replies on their way: made of the state as it is then, sent until they arrive or are given up."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
from standardwebhooks import Webhook

from tests.helpers.waiting import eventually
from tests.transactions.replying import QUICK, Replying, lane, replying
from waystation.config import WebhookConfig
from waystation.delivery.notices import latest_notices
from waystation.delivery.secret_file import read_secrets
from waystation.delivery.signing import new_secret
from waystation.errors import (
    ChannelFullError,
    InvalidChannelError,
    LogFullError,
    SettingsError,
    TopicNotFoundError,
)
from waystation.runtime.ids import RandomIds
from waystation.store.embedded.server import EmbeddedServer
from waystation.testing.endpoint import Answer, FakeEndpoint
from waystation.transactions import names, reply_sender
from waystation.transactions.reply_lanes import (
    item_of,
    lane_of,
    parse_receiver,
    receiver_of,
    receivers_in,
    reply_word,
)
from waystation.transactions.wanted import Wanted


async def field(running: Replying, transaction_id: str, name: str) -> str:
    found = await running.tx.store.call("HGET", names.state(transaction_id), name)
    return (found or b"").decode()


async def test_the_end_is_sent_signed_with_the_summary_and_noted_in_the_transaction(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    secret = new_secret(RandomIds())
    (tmp_path / "secret").write_text(secret + "\n")
    settings = msgspec.structs.replace(QUICK, secret_file=str(tmp_path / "secret"))
    async with FakeEndpoint() as receiver, replying(store_server, settings) as running:
        transaction_id = await running.ended(receiver.url)
        await running.until_empty(lane(receiver.url))

        (got,) = receiver.received
        Webhook(secret).verify(got.body, got.headers)
        version = (await running.tx.head(transaction_id)).version
        assert got.headers["webhook-id"] == f"{transaction_id}.{version - 1}", (
            "the note is one more"
        )
        assert got.headers["content-type"] == "application/json"
        body = json.loads(got.body)
        assert body["eventType"] == "complete"
        assert body["data"] == {"n": 1}
        assert body["metadata"]["txId"] == transaction_id
        assert body["metadata"]["status"] == "success"
        assert 0 < body["eventTime"] <= body["deliveryTime"]
        assert await field(running, transaction_id, "webhook_status") == "delivered"
        assert int(await field(running, transaction_id, "notifiedTime")) > 0


async def test_a_flaky_receiver_gets_it_in_the_end_with_the_same_id(
    store_server: EmbeddedServer,
) -> None:
    plan = [Answer(reset=True), 500, 200]
    async with FakeEndpoint(plan=plan) as receiver, replying(store_server) as running:
        transaction_id = await running.ended(receiver.url)
        await running.until_empty(lane(receiver.url))

        assert len({each.headers["webhook-id"] for each in receiver.received}) == 1
        attempts = await running.desk.attempts("default", transaction_id)
        assert [each.verdict for each in attempts] == ["retry", "retry", "done"]


async def test_what_is_given_up_is_in_the_failed_list_told_once_and_noted(
    store_server: EmbeddedServer,
) -> None:
    async with FakeEndpoint(plan=[500]) as receiver, replying(store_server) as running:
        transaction_id = await running.ended(receiver.url)

        async def told() -> list[str]:
            return [each.id for each in await latest_notices(running.tx.store, most=9)]

        await eventually(told)
        assert await told() == [transaction_id]
        rows, _ = await running.desk.page("default", state="failed", cursor="", limit=9)
        (row,) = rows
        assert (row.transaction_id, row.attempts, row.event) == (transaction_id, 3, "complete")
        assert row.cause == "the endpoint answered 500"
        assert row.receiver == receiver_of("default", "w", receiver.url)
        assert await field(running, transaction_id, "webhook_status") == "failed"
        assert await field(running, transaction_id, "webhook_comment") == row.cause
        assert await field(running, transaction_id, "notifiedTime") == ""


async def test_progress_is_sent_only_where_it_was_asked_for_and_the_end_comes_last(
    store_server: EmbeddedServer,
) -> None:
    async with FakeEndpoint() as receiver, replying(store_server) as running:
        for progress in (True, False):
            held = await running.begin(receiver.url, progress=progress)
            await running.progress.report(held, b'{"percent":50}')
            await running.until_empty(lane(receiver.url))
            await running.end(held, receiver.url)
            await running.until_empty(lane(receiver.url))

        bodies = [json.loads(each.body) for each in receiver.received]
        assert [each["eventType"] for each in bodies] == ["progressReport", "complete", "complete"]
        assert bodies[0]["progressReport"] == {"percent": 50}
        assert bodies[0]["data"] is None


async def test_a_report_that_waits_when_the_end_comes_is_not_sent_any_more(
    store_server: EmbeddedServer,
) -> None:
    async with FakeEndpoint(plan=[500, 200]) as receiver:
        settings = msgspec.structs.replace(QUICK, first_wait_seconds=2.5)
        async with replying(store_server, settings) as running:
            held = await running.begin(receiver.url, progress=True)
            await running.progress.report(held, b"1")
            await receiver.until(1)

            await running.end(held, receiver.url)

            await running.until_empty(lane(receiver.url))
            sent = [json.loads(each.body)["eventType"] for each in receiver.received]
    assert sent == ["progressReport", "complete"]


async def test_an_end_during_the_attempt_of_a_report_follows_it_at_once(
    store_server: EmbeddedServer,
) -> None:
    plan = [Answer(delay_seconds=0.4), 200]
    async with FakeEndpoint(plan=plan) as receiver, replying(store_server) as running:
        held = await running.begin(receiver.url, progress=True)
        await running.progress.report(held, b"1")
        await receiver.until(1)
        await running.end(held, receiver.url)
        await running.until_empty(lane(receiver.url))

        first, second = receiver.received
        assert json.loads(second.body)["eventType"] == "complete"
        assert 0.35 <= second.at - first.at < 5, "after it, and long before its claim runs out"
        assert first.headers["webhook-id"] != second.headers["webhook-id"]


# -- A URL that fails ------------------------------------------------------------------------


async def test_reply_sender_with_replies_that_fail_once_delivers_the_others_meanwhile(
    store_server: EmbeddedServer,
) -> None:
    settings = WebhookConfig(first_wait_seconds=3.0)
    async with (
        FakeEndpoint(plan=[500] * 12 + [200]) as receiver,
        replying(store_server, settings) as running,
    ):
        for _ in range(12):
            await running.ended(receiver.url)
        await receiver.until(12)
        for _ in range(28):
            await running.ended(receiver.url)

        async with asyncio.timeout(2.5):
            await receiver.until(40)
        assert [each.status for each in receiver.received[12:]] == [200] * 28
        await running.until_empty(lane(receiver.url))
        assert await latest_notices(running.tx.store, most=9) == []


async def test_reply_sender_with_a_failing_url_shows_the_pause_and_probes_with_untried_replies(
    store_server: EmbeddedServer,
) -> None:
    settings = WebhookConfig(fail_limit=2, disable_seconds=0.4, first_wait_seconds=600)
    async with (
        FakeEndpoint(plan=[Answer(reset=True)]) as receiver,
        FakeEndpoint() as other,
        replying(store_server, settings) as running,
    ):
        for _ in range(30):
            await running.ended(receiver.url)

        async def is_shown() -> bool:
            rows, _ = await running.desk.page("default", state="waiting", cursor="", limit=99)
            return bool(rows) and all(each.paused_ms is not None for each in rows)

        await eventually(is_shown)
        await running.ended(other.url)
        await running.until_empty(lane(other.url))
        # All replies that have failed wait for ten minutes. The others are probes.
        receiver.plan = [200]
        failed = len(receiver.received)
        assert failed < 30

        async def all_but_the_failed_are_delivered() -> bool:
            return await running.outbox.waiting(lane(receiver.url)) <= failed

        await eventually(all_but_the_failed_are_delivered)
        assert list(running.deliverer.open_breakers) == []


async def test_reply_sender_with_a_fail_limit_of_zero_pauses_no_url(
    store_server: EmbeddedServer,
) -> None:
    settings = msgspec.structs.replace(QUICK, attempts=1)
    async with (
        FakeEndpoint(plan=[Answer(reset=True)]) as receiver,
        replying(store_server, settings) as running,
    ):
        for _ in range(30):
            await running.ended(receiver.url)
        await running.until_empty(lane(receiver.url))
        assert len(receiver.received) == 30


# -- The archive -----------------------------------------------------------------------------


async def test_a_state_that_was_archived_before_is_loaded_when_it_is_sent_and_noted(
    store_server: EmbeddedServer,
) -> None:
    async with FakeEndpoint() as receiver, replying(store_server, start=False) as running:
        transaction_id = await running.ended(receiver.url)
        await running.shelve(transaction_id)

        await running.deliverer.start()

        await running.until_empty(lane(receiver.url))
        assert json.loads(receiver.received[0].body)["data"] == {"n": 1}
        assert await field(running, transaction_id, "webhook_status") == "delivered"
        key = names.state(transaction_id)
        assert await running.tx.store.call("PTTL", key) == -1, "it is to be archived once more"


@pytest.mark.parametrize(("status", "noted"), [(200, "delivered"), (400, "failed")])
async def test_a_state_that_leaves_the_store_during_the_request_is_brought_back_for_its_note(
    store_server: EmbeddedServer, status: int, noted: str
) -> None:
    once = msgspec.structs.replace(QUICK, attempts=1)
    async with (
        FakeEndpoint(plan=[Answer(status, delay_seconds=2.5)]) as receiver,
        replying(store_server, once) as running,
    ):
        transaction_id = await running.ended(receiver.url)
        await receiver.until(1)
        await running.shelve(transaction_id)
        await running.until_empty(lane(receiver.url))

        assert running.shelf.asked == 1
        assert await field(running, transaction_id, "webhook_status") == noted
        assert len(receiver.received) == 1


@pytest.mark.parametrize(("away", "seconds"), [(True, 0.0), (False, 600.0)])
async def test_a_note_that_cannot_be_made_keeps_no_delivery_from_being_settled(
    store_server: EmbeddedServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    away: bool,
    seconds: float,
) -> None:
    monkeypatch.setattr(reply_sender, "_NOTE_SECONDS_MAX", 0.2)
    async with (
        FakeEndpoint(plan=[Answer(200, delay_seconds=2.5)]) as receiver,
        replying(store_server) as running,
    ):
        transaction_id = await running.ended(receiver.url)
        await receiver.until(1)
        await running.shelve(transaction_id)
        running.shelf.away, running.shelf.seconds = away, seconds
        await running.until_empty(lane(receiver.url))

        assert running.shelf.asked == 1
        assert "notes about webhooks were lost" in caplog.text
        assert await running.tx.store.call("EXISTS", names.state(transaction_id)) == 0
        assert len(receiver.received) == 1


async def test_while_the_archive_is_away_nothing_is_counted_or_lost_and_what_is_cached_is_sent(
    store_server: EmbeddedServer,
) -> None:
    async with FakeEndpoint() as receiver, replying(store_server, start=False) as running:
        archived = await running.ended(receiver.url)
        await running.shelve(archived)
        running.shelf.away = True
        cached = await running.ended(receiver.url)
        await running.deliverer.start()
        (got,) = await receiver.until(1)
        assert got.headers["webhook-id"].startswith(cached)

        async def asked_twice() -> bool:
            return running.shelf.asked >= 2

        await eventually(asked_twice)
        assert running.shelf.asked <= 3, "once a second, not all the time"
        running.shelf.away = False
        await running.until_empty(lane(receiver.url))

        attempts = await running.desk.attempts("default", archived)
        assert [(each.attempt, each.verdict) for each in attempts] == [(1, "done")]


async def test_a_reply_whose_state_is_nowhere_is_given_up_with_that_cause(
    store_server: EmbeddedServer,
) -> None:
    async with FakeEndpoint() as receiver, replying(store_server, start=False) as running:
        transaction_id = await running.ended(receiver.url)
        await running.tx.store.call("UNLINK", names.state(transaction_id))
        await running.deliverer.start()
        await running.until_empty(lane(receiver.url))

        rows, _ = await running.desk.page("default", state="failed", cursor="", limit=9)
        (row,) = rows
        assert "neither in the store nor in the archive" in row.cause
        assert receiver.received == []


async def test_a_state_that_cannot_be_read_is_given_up_and_holds_up_no_other(
    store_server: EmbeddedServer,
) -> None:
    """F-19"""
    async with FakeEndpoint() as receiver, replying(store_server, start=False) as running:
        broken = await running.ended(receiver.url)
        await running.tx.store.call("HSET", names.state(broken), "state", b"\xc1junk")
        well = await running.ended(receiver.url)
        await running.deliverer.start()
        await running.until_empty(lane(receiver.url))

        rows, _ = await running.desk.page("default", state="failed", cursor="", limit=9)
        assert [each.transaction_id for each in rows] == [broken]
        assert {each.headers["webhook-id"].partition(".")[0] for each in receiver.received} == {
            well
        }


# -- Channels and topics ---------------------------------------------------------------------


async def test_a_channel_and_a_topic_get_the_same_event_under_an_id_that_stays_the_same(
    store_server: EmbeddedServer,
) -> None:
    async with replying(store_server) as running:
        # Given a channel and a topic that are full at first
        running.refusals += [ChannelFullError("full"), LogFullError("full")]
        transaction_id = await running.ended(channel="orders", topic="events")

        async def both() -> bool:
            return bool(running.published and running.produced)

        await eventually(both)
        ((project, channel, message_id, content),) = running.published
        ((_, topic, envelope),) = running.produced
        assert (project, channel, topic) == ("default", "orders", "events")
        assert message_id == envelope.id
        assert message_id.startswith(f"{transaction_id}.")
        assert content["eventType"] == "complete"
        assert (envelope.group, envelope.cause) == (transaction_id, transaction_id)
        assert envelope.traceparent == "00-ab"
        assert json.loads(envelope.data)["metadata"]["txId"] == transaction_id
        assert await field(running, transaction_id, "notifiedTime") == "", "nobody was told yet"


@pytest.mark.parametrize(
    ("wanted", "refusal"),
    [
        ({"channel": "orders"}, InvalidChannelError("No rule allows a channel orders.")),
        ({"topic": "events"}, TopicNotFoundError("There is no topic events.")),
    ],
)
async def test_what_can_never_arrive_is_given_up_at_once(
    store_server: EmbeddedServer, wanted: dict[str, str], refusal: Exception
) -> None:
    async with replying(store_server) as running:
        running.refusals.append(refusal)  # type: ignore[arg-type]
        transaction_id = await running.ended(**wanted)

        async def noted() -> str:
            return await field(running, transaction_id, "webhook_status")

        await eventually(noted)
        assert await noted() == "failed"
        (attempt,) = await running.desk.attempts("default", transaction_id)
        assert (attempt.verdict, attempt.failure) == ("failed", "forbidden")


# -- Names -----------------------------------------------------------------------------------


def test_a_receiver_is_the_url_without_its_query_and_never_another_project_s() -> None:
    url = "https://crm.example/hook?token=1"
    same = {url, "https://crm.example:443/hook", "https://CRM.example/hook?token=2"}
    assert len({receiver_of("default", "w", each) for each in same}) == 1
    others = ["http://crm.example/hook", "https://crm.example/Hook", "https://b.example/hook"]
    assert len({receiver_of("default", "w", each) for each in (url, *others)}) == 4
    assert receiver_of("acme", "w", url) != receiver_of("default", "w", url)


def test_the_word_of_a_start_tells_letters_and_receivers() -> None:
    assert reply_word("default", Wanted()) == ""
    word = reply_word("default", Wanted(channel="a", topic="b", status=True, poll_cancels=True))
    assert word == "sk c.default.a t.default.b"
    assert receivers_in(word) == ["c.default.a", "t.default.b"]
    plain = reply_word("acme", Wanted(webhook="https://crm.example/"))
    assert plain.startswith("- w.acme.")
    assert item_of("tx-1", "w") == "tx-1"
    assert item_of("tx-1", "t") == "tx-1.t"
    assert parse_receiver("x.default.a") is parse_receiver("nonsense") is None


async def test_a_lane_that_is_no_receiver_s_is_left_alone(store_server: EmbeddedServer) -> None:
    async with FakeEndpoint() as receiver, replying(store_server) as running:
        register = "{tx.0}:webhookLanesZ"
        await running.tx.store.call("ZADD", register, 1, lane_of(0, "nonsense"))
        await running.ended(receiver.url)
        await receiver.until(1)


def test_a_secret_file_that_cannot_be_used_is_told_at_start(tmp_path: Path) -> None:
    bad = tmp_path / "secret"
    bad.write_text("hunter2\n")
    with pytest.raises(SettingsError, match="A line of the secret file is no secret") as told:
        read_secrets(str(bad), "webhooks.secret_file")
    assert "hunter2" not in str(told.value) + told.value.hint
    assert read_secrets(WebhookConfig().secret_file, "x") == ()
