"""A station is killed between a start and its reply; the client tries again (F-02)."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from tests.helpers.http import async_ask
from tests.helpers.processes import station_process
from tests.helpers.store_faults import Fate, proxy_to
from waystation.store.address import Address
from waystation.testing.endpoint import FakeEndpoint


@pytest.mark.slow
async def test_a_start_that_nobody_answered_is_one_transaction_with_one_webhook(
    tmp_path: Path,
) -> None:
    data, loopback = tmp_path / "data", {"WAYSTATION_DELIVERY_LOOPBACK": "true"}
    async with FakeEndpoint() as receiver:
        metadata = {"externalId": "r-1", "webhook": receiver.url}
        order = json.dumps({"type": "refund", "data": 7, "metadata": metadata}).encode()
        with station_process(data, **loopback) as station:
            steps = b'{"steps": ["shop/pay"]}'
            assert (await async_ask(station.url, "PUT", "/v1/pipelines/refund", steps)).status < 300
            port = int(station.url.rpartition(":")[2])
            async with proxy_to(Address(host="127.0.0.1", port=port)) as proxy:
                await proxy.set_fates(replies=Fate.SWALLOW)
                url = f"http://127.0.0.1:{proxy.address.port}"
                starting = asyncio.ensure_future(async_ask(url, "POST", "/v1/transactions", order))
                await proxy.met.wait()
                station.signal(signal.SIGKILL)
                await station.exit_code()
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)
        with station_process(data, **loopback) as station:
            answers = [
                await async_ask(station.url, "POST", "/v1/transactions", order) for _ in range(2)
            ]
            assert [(each.status, each.json()["duplicate"]) for each in answers] == [
                (200, True)
            ] * 2
            (one,) = {each.json()["metadata"]["txId"] for each in answers}
            listed = await async_ask(station.url, "GET", "/v1/transactions")
            assert [each["id"] for each in listed.json()["transactions"]] == [one]
            path = f"/v1/transactions/{one}"
            assert (await async_ask(station.url, "POST", f"{path}/cancel")).status == 200
            (told,) = await receiver.until(1)
            assert told.headers["webhook-id"].startswith(one)
            async with asyncio.timeout(20):
                while True:
                    webhook = (await async_ask(station.url, "GET", f"{path}/webhook")).json()
                    if webhook["status"] == "delivered":
                        break
            assert len(receiver.received) == 1
