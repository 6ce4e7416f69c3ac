"""Rows of webhook attempts, of channels and of replies of transactions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from waystation import App, AsyncWaystation
from waystation.config import ChannelConfig, ChannelRule, WebhookRule
from waystation.delivery.attempt_log import LOG
from waystation.history.decoders.registry import decoder_for
from waystation.history.decoders.webhooks import webhook_rows
from waystation.history.lake.schema import WEBHOOK_ATTEMPTS
from waystation.history.offsets import OffsetRange
from waystation.logs.protocol import LogBatch
from waystation.testing import FakeEndpoint, serving
from waystation.testing.station import Serving, quick_settings


async def rows(running: Serving, wanted: int) -> list[dict[str, Any]]:
    """Return the rows of all attempts, which must be as many as `wanted`."""
    found: list[dict[str, Any]] = []
    for partition in range(4):
        block = await running.node.logs.read(LOG, partition, 0, limit=1000)
        made = webhook_rows(OffsetRange(LOG, partition, 0, 1000), block)
        found += made.to_pylist()
    assert len(found) == wanted
    return sorted(found, key=lambda row: (row["endpoint"], row["attempt"]))


async def test_attempts_of_channels_and_of_replies_become_rows(tmp_path: Path) -> None:
    app = App()

    @app.step("order/pay")
    async def pay(ctx: Any, order: Any) -> Any:
        return order

    app.pipeline("order", ["order/pay"])
    async with FakeEndpoint(plan=[503, 200]) as endpoint, FakeEndpoint() as reply:
        webhook = WebhookRule(name="crm", url=endpoint.url, first_wait_seconds=0.02)
        rule = ChannelRule(pattern="(?P<shop>[a-z]+)-orders", webhooks=(webhook,))
        settings = quick_settings(str(tmp_path), channels=ChannelConfig(rules=(rule,)))
        async with (
            serving(settings, app=app) as running,
            AsyncWaystation(running.url) as client,
        ):
            await client.channels.publish("acme-orders", {"n": 1}, message_id="m-1")
            begun = await client.transactions.start("order", {}, metadata={"webhook": reply.url})
            await endpoint.until(2)
            await reply.until(1)
            # An attempt is written down before it is settled, which comes when the reply is read
            for deliverer in (running.node.delivery.deliverer, running.node.replies.deliverer):
                assert deliverer is not None
                await deliverer.stop()
            first, second, third = await rows(running, 3)

    assert (first["project"], first["channel"]) == ("default", "acme-orders")
    assert (first["endpoint"], first["attempt"], first["status"]) == ("crm", 1, 503)
    assert (first["verdict"], second["verdict"]) == ("retry", "done")
    assert second["delivery_id"] == first["delivery_id"]
    assert (third["project"], third["channel"]) == ("default", None)
    assert third["endpoint"].startswith("w.default.")
    assert third["delivery_id"] == begun.id
    assert not any(row["malformed"] for row in (first, second, third))


@pytest.mark.parametrize(
    "payload",
    [
        *(b"no entry", b"\x92\x02\x90", b"\x92\x01\x91\x92\xa1l\xc4\x01x"),
        # A record with an unknown field that is nested more deeply than msgspec decodes
        b"\x92\x01\x91\x92\xa1l\xc5\x10\x04\x81\xa1x" + b"\x91" * 4096 + b"\xc0",
    ],
)
def test_an_entry_that_cannot_be_read_is_a_row_with_its_bytes(payload: bytes) -> None:
    decoder = decoder_for(LOG)
    assert decoder is not None
    assert decoder.table is WEBHOOK_ATTEMPTS
    made = decoder.decode(OffsetRange(LOG, 0, 5, 6), LogBatch(5, 6, [1], [payload]))
    assert [(row["malformed"], row["excerpt"]) for row in made.to_pylist()] == [(True, payload)]
