"""What agents answer reaches whoever waits, by whichever name the list has."""

from __future__ import annotations

import base64
import json

import pytest

from tests.acapy.mirror_world import mirror_world
from waystation.acapy.direct_responses import DirectResponses
from waystation.store.embedded import EmbeddedServer


def written(txn_id: str, data: bytes | None) -> bytes:
    """As an agent writes it."""
    response = None if data is None else base64.urlsafe_b64encode(data).decode()
    told = {"content-type": "application/ssi-agent-wire", "response": response}
    return json.dumps({"txn_id": txn_id, "response_data": told}).encode()


@pytest.mark.parametrize("name", ["acapy_inbound_direct_resp", "acapy_inbound_direct_response"])
async def test_an_answer_is_brought_to_the_pool(store_server: EmbeddedServer, name: str) -> None:
    async with mirror_world(store_server.address) as world:
        place, answers = world.pool.place, world.pools.answers
        responses = DirectResponses(world.store, answers, place, prefix="acapy")
        await world.store.call("RPUSH", name, written("t-1", b"\xff"), written("t-2", None))
        assert await responses.step() == 2
        found = await answers.wait(place, "t-1", seconds=1)
        assert found is not None
        assert (found.content_type, found.data) == ("application/ssi-agent-wire", b"\xff")
        nothing = await answers.wait(place, "t-2", seconds=1)
        assert nothing is not None
        assert nothing.data == b""
        assert await world.store.call("EXISTS", name, f"{{{name}}}.taken") == 0


async def test_what_is_no_answer_keeps_nobody_from_the_next(store_server: EmbeddedServer) -> None:
    async with mirror_world(store_server.address) as world:
        place, answers = world.pool.place, world.pools.answers
        responses = DirectResponses(world.store, answers, place, prefix="acapy")
        bad = (b"{", b"[]", b"\xff", b'{"txn_id": "no name"}', written("x" * 100, b""))
        await world.store.call("RPUSH", "acapy_inbound_direct_resp", *bad, written("t", b"1"))
        assert await responses.step() == 6
        found = await answers.wait(place, "t", seconds=1)
        assert found is not None
        assert found.data == b"1"
        assert await responses.step() == 0
