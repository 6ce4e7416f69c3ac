"""The status door: alive and ready, for who has the key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from tests.helpers.store_faults import Fate, proxy_to
from waystation.relay.http_app import HttpApp
from waystation.relay.server import DoorPlan, DoorServer
from waystation.relay.status import StatusDoor, answers
from waystation.store.address import Address
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer


@asynccontextmanager
async def status_door(address: Address) -> AsyncIterator[str]:
    store = Store(address, call_seconds_max=0.5)
    door = StatusDoor("key-1", ready=lambda: answers(store), alive=lambda: answers(store))
    app = HttpApp("status", door.handle, body_bytes_max=1000)
    server = DoorServer([DoorPlan(app, "127.0.0.1", 0)], body_bytes_max=1000)
    (port,) = await server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await server.stop()
        await store.close()


async def test_who_has_the_key_is_told_and_others_are_not(store_server: EmbeddedServer) -> None:
    async with status_door(store_server.address) as url, aiohttp.ClientSession() as client:
        for path, told in (("/status/ready", {"ready": True}), ("/status/live", {"alive": True})):
            async with client.get(url + path, headers={"access_token": "key-1"}) as reply:
                assert (reply.status, await reply.json()) == (200, told)
            for headers in ({}, {"access_token": "key-2"}, {"access_token": ""}):
                async with client.get(url + path, headers=headers) as reply:
                    assert reply.status == 403
                    assert await reply.json() == {"detail": "Could not validate key"}
            async with client.post(url + path) as reply:
                assert reply.status == 405
        async with client.get(url + "/other") as reply:
            assert reply.status == 404


async def test_a_store_that_does_not_answer_is_told(store_server: EmbeddedServer) -> None:
    async with proxy_to(store_server.address) as proxy, status_door(proxy.address) as url:
        await proxy.set_fates(requests=Fate.SWALLOW)
        headers = {"access_token": "key-1"}
        async with (
            aiohttp.ClientSession(headers=headers) as client,
            client.get(url + "/status/ready") as told,
        ):
            assert (told.status, await told.json()) == (200, {"ready": False})


def test_a_status_door_without_a_key_is_none() -> None:
    async def yes() -> bool:
        return True

    with pytest.raises(AssertionError):
        StatusDoor("", ready=yes, alive=yes)
