"""From publish to settled, with a death at every store call and real kills: at least once, no less.

What can come twice is one thing only: an attempt whose settlement was lost. It comes with the same
`webhook-id`, so that a receiver knows it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest

from tests.cli.conftest import clean_environment, command
from tests.helpers.http import Receiver
from tests.helpers.waiting import eventually
from waystation.channels.service import ChannelService
from waystation.channels.webhooks import webhook_endpoints
from waystation.config import ChannelConfig, ChannelRule, WebhookRule
from waystation.delivery.addresses import AddressGuard
from waystation.delivery.outbox import Outbox
from waystation.delivery.schedule import Decision, Verdict
from waystation.delivery.sender import Sender
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.pubsub import PubSub
from waystation.testing import CrashPoint, crash_points
from waystation.testing.endpoint import FakeEndpoint

LANE = "c.{orders}.out.crm"
GUARD = AddressGuard(loopback=True)
MESSAGES = ["m-1", "m-2"]


async def publish(store: Store, settings: ChannelConfig) -> None:
    channels = ChannelService(
        store, PubSub(store.address), clock=Clock(), settings=settings, guard=GUARD
    )
    for each in MESSAGES:
        await channels.publish("default", "orders", each, b"1")


async def deliver(store: Store, settings: ChannelConfig, *, claim_ms: int) -> None:
    """What a deliverer does, in an order that is the same each time."""
    outbox, sender = Outbox(store), Sender(GUARD)
    crm = webhook_endpoints(settings.rules, GUARD)["crm"]
    try:
        while await outbox.waiting(LANE):
            claim = await outbox.claim(LANE, most=1, claim_ms=claim_ms, token=os.urandom(8).hex())
            for claimed in claim.items:
                item = crm.read(LANE, claimed.packed)
                assert item is not None
                outcome = await sender.send(crm.request(LANE, claimed.id, item, now_ms=0))
                assert outcome.succeeded
                done = Decision(Verdict.DONE)
                await outbox.settle(LANE, claimed, done, outcome, at_ms=0)
    finally:
        await sender.close()


@pytest.mark.slow
def test_a_death_at_any_call_from_publish_to_settle_loses_nothing_and_doubles_one_attempt_at_most(
    store_server: EmbeddedServer,
) -> None:
    """F-03"""
    with Receiver(FakeEndpoint()) as receiver:
        rule = ChannelRule(pattern="orders", webhooks=(WebhookRule(name="crm", url=receiver.url),))
        settings = ChannelConfig(rules=(rule,))

        async def prepare(store: Store) -> None:
            receiver.received.clear()

        async def scenario(store: Store) -> None:
            await publish(store, settings)
            # Everyone who starts after our death finds what we claimed due again.
            await deliver(store, settings, claim_ms=20)

        async def after(store: Store, point: CrashPoint) -> None:
            # Given a client that repeats what was not answered, and another deliverer
            await publish(store, settings)
            outbox = Outbox(store)
            assert LANE in await outbox.lanes() or not await outbox.waiting(LANE)
            await deliver(store, settings, claim_ms=60_000)
            records = [each.id for each in await outbox.records(LANE)]
            came = [json.loads(each.body)["messageID"] for each in receiver.received]
            ids = {
                json.loads(each.body)["messageID"]: each.headers["webhook-id"]
                for each in receiver.received
            }
            # Then each message came, and was settled exactly once
            assert set(came) == set(MESSAGES)
            assert sorted(records) == sorted(ids.values()), "settled once each"
            # And if one came twice, it was the one that was under way, with the same id
            assert len(came) <= len(MESSAGES) + 1
            assert len({each.headers["webhook-id"] for each in receiver.received}) == 2

        points = crash_points(store_server.address, scenario, after, prepare=prepare)

    assert len(points) >= 3 * 10


SETTINGS = """
[auth]
insecure = true

[delivery]
loopback = true

[http]
port = 0

[[channels.rules]]
pattern = "orders"

[[channels.rules.webhooks]]
name = "crm"
url = "{url}"
first_wait_seconds = 0.05
"""


@pytest.mark.slow
async def test_a_station_that_is_killed_again_and_again_delivers_everything_in_the_end(
    tmp_path: Path,
) -> None:
    """P1, F-03: kill -9 of the whole process while messages are published and sent."""
    accepted: list[str] = []
    async with FakeEndpoint(plan=[200, 200, 500, 200], seed=3) as endpoint:
        (tmp_path / "waystation.toml").write_text(SETTINGS.format(url=endpoint.url))
        for life in range(4):
            process = subprocess.Popen(
                command("serve", "--json"),
                cwd=tmp_path,
                env=clean_environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            assert process.stdout is not None
            url = json.loads(await asyncio.to_thread(process.stdout.readline))["url"]
            for number in range(60):
                message = f"m-{life}-{number}"
                await asyncio.to_thread(put, f"{url}/channel/orders/message/{message}")
                accepted.append(message)
            if life < 3:
                # In the middle of it all: some are sent, some are under way, some wait.
                process.send_signal(signal.SIGKILL)
                process.communicate()

        def missing() -> set[str]:
            came = {json.loads(each.body)["messageID"] for each in endpoint.received}
            return set(accepted) - came

        async def all_came() -> bool:
            return not missing()

        try:
            # What the killed ones had claimed runs out within ten seconds.
            await eventually(all_came, timeout=60)
        finally:
            process.terminate()
            process.communicate()

    assert len(accepted) == 240
    bodies = {each.headers["webhook-id"]: each.body for each in endpoint.received}
    assert len(bodies) == 240, "one id per message, however often it came"


def put(url: str) -> None:
    request = urllib.request.Request(url, data=b"1", method="PUT")
    with urllib.request.urlopen(request, timeout=10) as reply:
        assert reply.status == 200
