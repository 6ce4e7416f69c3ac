"""Webhooks of channels: sent once per accepted message, never in the way of a publish."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

from standardwebhooks import Webhook

from waystation import AsyncWaystation
from waystation.channel_settings import ChannelRule, WebhookRule
from waystation.delivery.signing import new_secret
from waystation.ids import RandomIdentity
from waystation.settings import ChannelSettings, Settings
from waystation.testing import serving
from waystation.testing.endpoint import Answer, FakeEndpoint
from waystation.testing.station import quick_settings


def settings_with(tmp_path: Path, *webhooks: WebhookRule) -> Settings:
    rule = ChannelRule(pattern="(?P<shop>[a-z]+)-orders", webhooks=webhooks)
    return quick_settings(str(tmp_path), channels=ChannelSettings(rules=(rule,)))


async def test_a_message_is_sent_signed_to_its_webhook_once(tmp_path: Path) -> None:
    secret = new_secret(RandomIdentity())
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
            await asyncio.sleep(0.3)

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


async def test_a_hanging_webhook_delays_no_publish(tmp_path: Path) -> None:
    async with FakeEndpoint(plan=[Answer(hang=True)]) as endpoint:
        webhook = WebhookRule(name="crm", url=endpoint.url)
        async with (
            serving(settings_with(tmp_path, webhook)) as running,
            AsyncWaystation(running.url) as client,
        ):
            async with asyncio.timeout(5):
                for number in range(100):
                    await client.channels.publish("acme-orders", number)


async def test_a_channel_that_no_rule_allows_is_refused_in_the_shape_of_dsps(
    tmp_path: Path,
) -> None:
    webhook = WebhookRule(name="crm", url="http://127.0.0.1:1/")
    async with serving(settings_with(tmp_path, webhook)) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(
            b"PUT /channel/elsewhere/message/m HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n1"
        )
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        told = json.loads(await reader.readexactly(size))
        writer.close()

    assert head.startswith(b"HTTP/1.1 400")
    assert told["code"] == "dsps.storage.invalid-channel"


async def test_what_waits_in_the_outbox_survives_the_death_of_the_store(tmp_path: Path) -> None:
    async with FakeEndpoint(plan=[503] * 3 + [200]) as endpoint:
        webhook = WebhookRule(name="crm", url=endpoint.url, first_wait_seconds=0.5)
        async with (
            serving(settings_with(tmp_path, webhook)) as running,
            AsyncWaystation(running.url) as client,
        ):
            await client.channels.publish("acme-orders", 1, message_id="m-1")
            await endpoint.until(1)
            server = running.node.opened.server
            assert server is not None
            os.kill(server.process_id, signal.SIGKILL)

            await endpoint.until(4, seconds=30)

        assert endpoint.received[-1].status == 200
