"""Channel webhooks: signed requests, retries, changed settings, forbidden URLs, outbox queues."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from tests.channels.helpers import ChannelStore, open_channels
from tests.helpers.waiting import eventually
from waystation import AsyncWaystation
from waystation.channels.webhooks import webhook_endpoints
from waystation.config import ChannelConfig, ChannelRule, Config, DeliveryConfig, WebhookRule
from waystation.delivery.addresses import AddressGuard
from waystation.delivery.outbox import Item, Outbox
from waystation.delivery.request import Outcome
from waystation.delivery.schedule import Verdict
from waystation.delivery.signing import new_secret
from waystation.errors import ForbiddenAddressError, SettingsError
from waystation.node import open_node
from waystation.runtime.ids import RandomIds
from waystation.store.embedded.server import EmbeddedServer
from waystation.testing import serving
from waystation.testing.endpoint import Answer, FakeEndpoint
from waystation.testing.station import Serving, quick_settings

LANE = "c.{acme-orders}.out.crm"


async def until_settled(running: Serving) -> None:
    """Wait until no outbox queue has pending deliveries."""
    outbox = Outbox(running.node.opened.store)

    async def nothing_waits() -> bool:
        lanes = list(await outbox.lanes())
        return not any(waiting for waiting, _, _ in await outbox.counts(lanes))

    await eventually(nothing_waits)


def settings_with(tmp_path: Path, *webhooks: WebhookRule) -> Config:
    rule = ChannelRule(pattern="(?P<shop>[a-z]+)-orders", webhooks=webhooks)
    return quick_settings(str(tmp_path), channels=ChannelConfig(rules=(rule,)))


async def test_webhook_signs_request_and_retries_until_success(tmp_path: Path) -> None:
    secret = new_secret(RandomIds())
    (tmp_path / "secret").write_text(secret)
    async with FakeEndpoint(plan=[500, 200]) as endpoint:
        webhook = WebhookRule(
            name="crm",
            url=endpoint.url + "/{{.channel.shop}}",
            headers={"x-shop": "{{.channel.shop}}"},
            secret_file=str(tmp_path / "secret"),
            first_wait_seconds=0.02,
        )
        async with (
            serving(settings_with(tmp_path, webhook)) as running,
            AsyncWaystation(running.url) as client,
        ):
            for _ in range(3):
                await client.channels.publish("acme-orders", {"n": 1.0}, message_id="m-1")
            first, second = await endpoint.until(2)
            await until_settled(running)

        assert len(endpoint.received) == 2, "a duplicate publish sends nothing"
        assert first.path == "/hook/acme"
        assert first.headers["x-shop"] == "acme"
        assert first.headers["webhook-id"] == second.headers["webhook-id"]
        body = Webhook(secret).verify(second.body, second.headers)
        assert body == {
            "type": "dsps.channel.outgoing-webhook",
            "channelID": "acme-orders",
            "messageID": "m-1",
            "content": {"n": 1.0},
        }
        assert b'"content":{"n":1.0}' in second.body


@pytest.mark.slow
async def test_webhook_that_hangs_delays_no_publish(tmp_path: Path) -> None:
    async with FakeEndpoint(plan=[Answer(hang=True)]) as endpoint:
        webhook = WebhookRule(name="crm", url=endpoint.url)
        async with (
            serving(settings_with(tmp_path, webhook)) as running,
            AsyncWaystation(running.url) as client,
        ):
            await client.channels.publish("acme-orders", 0)
            await endpoint.until(1)
            # All publishes succeed although the endpoint has answered no request.
            for number in range(100):
                await client.channels.publish("acme-orders", number)

            assert [each.status for each in endpoint.received] == [0] * len(endpoint.received)
            assert len(endpoint.received) <= 8


async def test_webhook_of_single_and_batch_publish_is_sent_once_per_message(
    tmp_path: Path,
) -> None:
    async with FakeEndpoint() as endpoint:
        webhook = WebhookRule(name="crm", url=endpoint.url)
        async with (
            serving(settings_with(tmp_path, webhook)) as running,
            AsyncWaystation(running.url) as client,
        ):
            await client.channels.publish("acme-orders", 1, message_id="m-1")
            for _ in range(2):
                await client.channels.publish_many(
                    "acme-orders", [("m-1", 1), ("m-2", 2), ("m-2", 2), ("m-3", 3)]
                )
            await endpoint.until(3)
            await until_settled(running)

        came = sorted(json.loads(each.body)["messageID"] for each in endpoint.received)
        assert came == ["m-1", "m-2", "m-3"]


async def test_webhooks_of_all_matching_rules_are_sent(tmp_path: Path) -> None:
    async with FakeEndpoint() as endpoint:
        rules = (
            ChannelRule(
                pattern="(?P<shop>[a-z]+)-orders",
                webhooks=(
                    WebhookRule(name="crm", url=endpoint.url + "/crm/{{.channel.shop}}"),
                    WebhookRule(name="erp", url=endpoint.url + "/erp", method="POST"),
                ),
            ),
            ChannelRule(
                pattern="acme-(?P<what>.+)",
                webhooks=(WebhookRule(name="acme", url=endpoint.url + "/acme/{{.channel.what}}"),),
            ),
            ChannelRule(
                pattern="other-.*", webhooks=(WebhookRule(name="other", url=endpoint.url),)
            ),
        )
        settings = quick_settings(str(tmp_path), channels=ChannelConfig(rules=rules))
        async with serving(settings) as running, AsyncWaystation(running.url) as client:
            await client.channels.publish("acme-orders", 1)
            await endpoint.until(3)
            await until_settled(running)

        assert sorted((each.method, each.path) for each in endpoint.received) == [
            ("POST", "/hook/erp"),
            ("PUT", "/hook/acme/orders"),
            ("PUT", "/hook/crm/acme"),
        ]


async def test_webhook_id_of_reused_message_id_is_new(
    tmp_path: Path,
) -> None:
    """Use a new `webhook-id` for a new message, because receivers detect repetitions by it."""
    async with FakeEndpoint(plan=[503, 503, 200]) as endpoint:
        webhook = WebhookRule(name="crm", url=endpoint.url, first_wait_seconds=0.3)
        settings = settings_with(tmp_path, webhook)
        async with serving(settings) as running, AsyncWaystation(running.url) as client:
            await client.channels.publish("acme-orders", 1, message_id="m-1")
            await client.channels.publish("zeta-orders", 2, message_id="m-1")
            await endpoint.until(2)
            # The id of the message expires while its delivery is pending.
            store = running.node.opened.store
            await store.call("DEL", "c.{acme-orders}.mid.m-1")
            await client.channels.publish("acme-orders", 3, message_id="m-1")
            await endpoint.until(5)
            await until_settled(running)

        by_id = {each.headers["webhook-id"]: json.loads(each.body) for each in endpoint.received}
        assert sorted(each["content"] for each in by_id.values()) == [1, 2, 3]


async def test_webhook_with_corrected_url_redrives_failed_deliveries_there(tmp_path: Path) -> None:
    async with FakeEndpoint(plan=[403]) as wrong, FakeEndpoint() as right:
        bad = WebhookRule(name="crm", url=wrong.url)
        async with (
            serving(settings_with(tmp_path, bad)) as running,
            AsyncWaystation(running.url) as client,
        ):
            await client.channels.publish("acme-orders", 1)
            await wrong.until(1)
            await until_settled(running)
        good = WebhookRule(name="crm", url=right.url)
        async with (
            serving(settings_with(tmp_path, good)) as running,
            AsyncWaystation(running.url) as client,
        ):
            assert await client.deliveries.redrive("crm") == 1
            await right.until(1)
        assert len(wrong.received) == 1


@pytest.mark.slow
async def test_webhook_that_was_removed_keeps_pending_deliveries_until_discarded(
    tmp_path: Path,
) -> None:
    async with FakeEndpoint(plan=[503]) as endpoint:
        webhook = WebhookRule(name="crm", url=endpoint.url, first_wait_seconds=0.1)
        async with (
            serving(settings_with(tmp_path, webhook)) as running,
            AsyncWaystation(running.url) as client,
        ):
            await client.channels.publish("acme-orders", 1)
            await endpoint.until(1)
        # The webhook is removed from the settings, then removed while another one is added.
        for others in ((), (WebhookRule(name="erp", url=endpoint.url),)):
            seen = len(endpoint.received)
            async with (
                serving(settings_with(tmp_path, *others)) as running,
                AsyncWaystation(running.url) as client,
            ):
                rows = {each.endpoint: each for each in await client.deliveries.endpoints()}
                assert (rows["crm"].state, rows["crm"].waiting) == ("unknown", 1)
                assert len(endpoint.received) == seen
        # The delivery is sent after the webhook is added again.
        endpoint.plan = [200]
        async with serving(settings_with(tmp_path, webhook)) as running:
            await endpoint.until(seen + 1)
            await until_settled(running)
        # Without the webhook, an operator can discard its pending deliveries.
        async with (
            serving(settings_with(tmp_path)) as running,
            AsyncWaystation(running.url) as client,
        ):
            await Outbox(running.node.opened.store).add(LANE, "m-9", Item())
            assert await client.deliveries.discard("crm", waiting=True) == 1
            assert await client.deliveries.endpoints() == []


async def test_publish_with_forbidden_webhook_url_writes_nothing(
    tmp_path: Path,
) -> None:
    """Reject a publish if the name of the channel makes the URL of a webhook forbidden.

    At start, only the constant part of a URL can be checked.
    """
    webhook = WebhookRule(name="crm", url="http://{{.channel.host}}/hook")
    rule = ChannelRule(pattern="to-(?P<host>[0-9a-z]+)", webhooks=(webhook,))
    settings = quick_settings(
        str(tmp_path),
        channels=ChannelConfig(rules=(rule,)),
        delivery=DeliveryConfig(loopback=False),
    )
    async with serving(settings) as running, AsyncWaystation(running.url) as client:
        for host in ("2130706433", "0x7f000001"):
            with pytest.raises(ForbiddenAddressError) as raised:
                await client.channels.publish(f"to-{host}", 1)
            assert raised.value.code == "endpoint.forbidden"
            assert "127.0.0.1" not in str(raised.value)
        store = running.node.opened.store
        assert [key for key in await store.call("KEYS", "*") if key.startswith(b"c.")] == []


async def test_webhook_in_allowed_network_is_sent_and_others_are_rejected(tmp_path: Path) -> None:
    """Send a webhook to a network in `allowed_networks`, and reject an endpoint outside of it."""
    async with FakeEndpoint() as endpoint:
        settings = msgspec.structs.replace(
            settings_with(tmp_path, WebhookRule(name="crm", url=endpoint.url)),
            delivery=DeliveryConfig(loopback=False, allowed_networks=["127.0.0.0/8"]),
        )
        async with serving(settings) as running, AsyncWaystation(running.url) as client:
            await client.channels.publish("shoes-orders", {"n": 1})
            await endpoint.until(1)
            await client.topics.create("orders")
            with pytest.raises(ForbiddenAddressError):
                await client.subscriptions.create("x", topic="orders", endpoint="http://10.0.0.1/")


BAD_WEBHOOKS = {
    "loopback": {"url": "http://127.0.0.1/"},
    "decimal": {"url": "http://2130706433/"},
    "metadata": {"url": "http://169.254.169.254/{{.channel.shop}}"},
    "scheme": {"url": "ftp://crm.example/"},
    "user": {"url": "https://me:secret@crm.example/"},
    "host header": {"url": "https://crm.example/", "headers": {"Host": "x"}},
    "signature": {"url": "https://crm.example/", "headers": {"webhook-signature": "x"}},
    "authorization": {"url": "https://crm.example/", "headers": {"Authorization": "Bearer x"}},
    "line break": {"url": "https://crm.example/", "headers": {"x": "a\r\nb: c"}},
    "no such secret": {"url": "https://crm.example/", "secret_file": "/nonexistent"},
    "unknown group": {"url": "https://crm.example/{{.channel.nobody}}"},
}


@pytest.mark.parametrize("bad", BAD_WEBHOOKS.values(), ids=BAD_WEBHOOKS)
async def test_webhook_with_invalid_settings_is_rejected_at_start(
    tmp_path: Path, bad: dict[str, Any]
) -> None:
    """Reject forbidden URLs, reserved headers and missing files, without secrets in the error."""
    settings = settings_with(tmp_path, WebhookRule(name="crm", **bad))
    settings = msgspec.structs.replace(settings, delivery=DeliveryConfig(loopback=False))

    with pytest.raises(SettingsError) as raised:
        await open_node(settings)

    assert "secret@" not in str(raised.value)


@pytest.mark.parametrize("content", ["junk", "whsec_!!!", ""])
async def test_webhook_with_invalid_secret_is_rejected_and_error_hides_secret(
    tmp_path: Path, content: str
) -> None:
    (tmp_path / "secret").write_text(content)
    webhook = WebhookRule(name="crm", url="http://127.0.0.1/", secret_file=f"{tmp_path}/secret")

    with pytest.raises(SettingsError) as raised:
        await open_node(settings_with(tmp_path, webhook))

    assert not content or content not in str(raised.value)


async def test_webhooks_with_equal_names_are_rejected_at_start(tmp_path: Path) -> None:
    webhook = WebhookRule(name="crm", url="http://127.0.0.1/")

    with pytest.raises(SettingsError, match="the same name"):
        await open_node(settings_with(tmp_path, webhook, webhook))


async def test_webhook_during_secret_rotation_verifies_with_old_and_new_secret(
    tmp_path: Path,
) -> None:
    """Sign with both secrets of the file, so that a receiver can verify with either of them."""
    old, new = new_secret(RandomIds()), new_secret(RandomIds())
    (tmp_path / "secret").write_text(f"{new}\n{old}\n")
    (tmp_path / "authorization").write_text("Bearer t0ken\n")
    async with FakeEndpoint() as endpoint:
        webhook = WebhookRule(
            name="crm",
            url=endpoint.url,
            secret_file=f"{tmp_path}/secret",
            authorization_file=f"{tmp_path}/authorization",
        )
        async with (
            serving(settings_with(tmp_path, webhook)) as running,
            AsyncWaystation(running.url) as client,
        ):
            await client.channels.publish("acme-orders", "ü")
            (got,) = await endpoint.until(1)

        for secret in (old, new):
            assert Webhook(secret).verify(got.body, got.headers)["content"] == "ü"
        with pytest.raises(WebhookVerificationError):
            Webhook(new_secret(RandomIds())).verify(got.body, got.headers)
        with pytest.raises(WebhookVerificationError):
            Webhook(new).verify(got.body + b" ", got.headers)
        assert got.headers["authorization"] == "Bearer t0ken"


async def test_webhook_rule_with_retry_settings_determines_schedule(tmp_path: Path) -> None:
    rule = WebhookRule(
        name="crm",
        url="https://crm.example/",
        attempts=4,
        first_wait_seconds=2,
        growth="linear",
        jitter=0,
        wait_seconds_min=3,
        wait_seconds_max=5,
        fatal_codes=(404,),
        retry_codes=(401, 410),
    )
    found = webhook_endpoints((ChannelRule(pattern=".+", webhooks=(rule,)),), AddressGuard())
    schedule, rng = found["crm"].schedule, random.Random(1)

    assert [schedule.wait_seconds(attempt, rng) for attempt in (1, 2, 3)] == [3, 4, 5]
    verdicts = {
        status: schedule.decide(Outcome(status=status), attempt=1, rng=rng).verdict
        for status in (401, 403, 404, 410, 500)
    }
    assert verdicts == {
        401: Verdict.RETRY,
        403: Verdict.FAILED,
        404: Verdict.FAILED,
        410: Verdict.RETRY,
        500: Verdict.RETRY,
    }
    assert schedule.decide(Outcome(status=500), attempt=4, rng=rng).verdict is Verdict.FAILED


async def test_publish_to_channel_without_rule_is_rejected_as_by_dsps(
    tmp_path: Path,
) -> None:
    webhook = WebhookRule(name="crm", url="http://127.0.0.1:1/")
    async with serving(settings_with(tmp_path, webhook)) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(
            b"PUT /channel/elsewhere/message/m HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            b"content-length: 1\r\n\r\n1"
        )
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        told = json.loads(await reader.readexactly(size))
        writer.close()

    assert head.startswith(b"HTTP/1.1 400")
    assert told["code"] == "dsps.storage.invalid-channel"


@pytest.mark.slow
async def test_webhook_pending_during_store_crash_is_sent(tmp_path: Path) -> None:
    async with FakeEndpoint(plan=[503] * 3 + [200]) as endpoint:
        webhook = WebhookRule(name="crm", url=endpoint.url, first_wait_seconds=0.5)
        settings = settings_with(tmp_path, webhook)
        # Use durability `disk`, because a killed server otherwise loses up to a second of writes.
        on_disk = msgspec.structs.replace(settings.store, durability="disk")
        async with (
            serving(msgspec.structs.replace(settings, store=on_disk)) as running,
            AsyncWaystation(running.url) as client,
        ):
            await client.channels.publish("acme-orders", 1, message_id="m-1")
            await endpoint.until(1)
            server = running.node.opened.server
            assert server is not None
            os.kill(server.process_id, signal.SIGKILL)

            await endpoint.until(4, seconds=30)

        assert endpoint.received[-1].status == 200


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


async def items(channel_store: ChannelStore, channel: str) -> list[list[tuple[str, bytes]]]:
    """Claim the items of each outbox queue. Return body and id of each, the id without its time."""
    found = []
    for lane in LANES:
        outbox = Outbox(channel_store.store)
        claim = await outbox.claim(lane % channel, most=10, claim_ms=60_000, token="t")
        found.append([(each.id.rpartition(".")[0], each.packed) for each in claim.items])
    return found


async def test_publish_with_item_writes_same_keys_as_batch_of_one(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server, rules=RULES) as channel_store:
        # Publish the same messages to two channels: one by one, and as batches of one message.
        for message_id in ("m-1", "m-2", "m-1"):
            await channel_store.channels.publish("default", "single", message_id, b'{"n":1}')
            await channel_store.channels.publish_many(
                "default", "batch", [(message_id, b'{"n":1}')]
            )

        # Both channels have the same messages, and their outbox queues have the same items.
        single, batch = await items(channel_store, "single"), await items(channel_store, "batch")
        assert [[item_id for item_id, _ in lane] for lane in single] == [
            ["single.m-1", "single.m-2"]
        ] * 2
        renamed = [
            [(i.replace("batch", "single"), b.replace(b"batch", b"single")) for i, b in lane]
            for lane in batch
        ]
        assert single == renamed
        assert await channel_store.number("c.{single}.clock") == 2
        assert await channel_store.number("c.{batch}.clock") == 2


async def test_publish_with_item_for_duplicate_message_adds_no_delivery(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server, rules=RULES) as channel_store:
        first = await channel_store.channels.publish("default", "orders", "m-1", b"1")
        again = await channel_store.channels.publish("default", "orders", "m-1", b"2")

        assert (first.clock, first.duplicate) == (1, False)
        assert (again.clock, again.duplicate) == (1, True)
        assert [len(lane) for lane in await items(channel_store, "orders")] == [1, 1]


async def test_publish_with_item_concurrently_in_new_channel_adds_every_delivery(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server, rules=RULES) as channel_store:
        await asyncio.gather(
            *(
                channel_store.channels.publish("default", "orders", f"m-{n}", b"1")
                for n in range(10)
            )
        )

        assert [len(lane) for lane in await items(channel_store, "orders")] == [10, 10]
        assert set(await Outbox(channel_store.store).lanes()) == {lane % "orders" for lane in LANES}


async def test_publish_while_a_delivery_is_due_wakes_no_deliverer(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server, rules=RULES) as channel_store:
        outbox, lane = Outbox(channel_store.store), LANES[0] % "orders"
        await channel_store.channels.publish("default", "orders", "m-0", b"1")
        await outbox.claim(lane, most=10, claim_ms=60_000, token="t")
        with channel_store.wakeups.waiting(f"{lane}.wake".encode()) as waiter:
            await waiter.wait(5)  # Wait until the subscription takes effect.

            # All earlier deliveries are claimed, so a new message wakes the deliverer.
            waiter.clear()
            await channel_store.channels.publish("default", "orders", "m-1", b"1")
            await asyncio.wait_for(waiter.wait(9), 5)

            # A delivery is due already, so further messages do not wake the deliverer.
            await next_millisecond(channel_store)
            before = await published(channel_store)
            await channel_store.channels.publish("default", "orders", "m-2", b"1")
            await channel_store.channels.publish_many("default", "orders", [("m-3", b"1")])
            # The store publishes only the two wake-ups for readers of the channel.
            assert await published(channel_store) - before == 2

        # One claim returns all three deliveries.
        claim = await outbox.claim(lane, most=10, claim_ms=60_000, token="t")
        assert len(claim.items) == 3


async def published(channel_store: ChannelStore) -> int:
    """Return the number of PUBLISH commands that the store has run."""
    stats = (await channel_store.store.call("INFO", "commandstats")).decode()
    (line,) = (each for each in stats.splitlines() if each.startswith("cmdstat_publish:"))
    return int(line.partition("calls=")[2].partition(",")[0])


async def next_millisecond(channel_store: ChannelStore) -> None:
    """Wait until the millisecond ends: deliveries published in one millisecond are due together."""
    begun = await channel_store.store.call("TIME")
    while (await channel_store.store.call("TIME"))[1][:-3] == begun[1][:-3]:
        await asyncio.sleep(0)


async def test_outbox_with_delivery_in_inbox_is_not_retired(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server, rules=RULES) as channel_store:
        outbox, lane = Outbox(channel_store.store), LANES[0] % "orders"
        await channel_store.channels.publish("default", "orders", "m-1", b"1")
        registered = await outbox.registration(lane)

        # The queue is not retired while the delivery is pending, nor while it is claimed.
        assert await outbox.retire(lane, registered) is False
        (claimed,) = (await outbox.claim(lane, most=5, claim_ms=60_000, token="t")).items
        assert await outbox.retire(lane, registered) is False
        assert await outbox.release(lane, claimed)
        assert await outbox.discard(lane, waiting=True, item_id=claimed.id) == 1
        assert await outbox.retire(lane, registered) is True


async def test_outbox_of_unattempted_deliveries_is_counted_bounded_and_discarded(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server, rules=RULES, waiting_max=3) as channel_store:
        outbox, lane = Outbox(channel_store.store), LANES[0] % "orders"
        for number in range(5):
            await channel_store.channels.publish("default", "orders", f"m-{number}", b"1")
        assert await outbox.counts([lane]) == [(3, 0, 2)]

        # Discard the claimed delivery by its id, then one that is not claimed.
        (claimed,) = (await outbox.claim(lane, most=1, claim_ms=60_000, token="t")).items
        assert await outbox.release(lane, claimed)
        assert await outbox.discard(lane, waiting=True, item_id="orders.m-9.1-1") == 0
        assert await outbox.discard(lane, waiting=True, item_id=claimed.id) == 1
        assert await outbox.discard(lane, waiting=True, most=1) == 1
        assert await outbox.counts([lane]) == [(1, 0, 2)]
        (last,) = (await outbox.claim(lane, most=5, claim_ms=60_000, token="t")).items
        assert last.id.startswith("orders.m-2.")


async def test_outbox_claim_returns_retries_before_unattempted_deliveries(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server, rules=RULES) as channel_store:
        outbox, lane = Outbox(channel_store.store), LANES[0] % "orders"
        for number in range(4):
            await channel_store.channels.publish("default", "orders", f"m-{number}", b"1")
        first = (await outbox.claim(lane, most=2, claim_ms=60_000, token="t")).items
        for each in first:
            assert await outbox.release(lane, each)

        claim = await outbox.claim(lane, most=3, claim_ms=60_000, token="u")

        names = [each.id.rpartition(".")[0] for each in claim.items]
        assert names == ["orders.m-0", "orders.m-1", "orders.m-2"]
        assert (claim.waiting, claim.next_ms) == (4, 0)
