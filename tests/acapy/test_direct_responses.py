"""What agents answer reaches whoever waits, by whichever name the list has."""

from __future__ import annotations

import base64
import json

import pytest

from tests.acapy.mirror_world import mirror_world
from waystation.acapy.direct_responses import DirectResponses
from waystation.config import RelayConfig
from waystation.store.embedded.server import EmbeddedServer

LISTS = RelayConfig().direct_responses


def written(txn_id: str, data: bytes | None) -> bytes:
    """As an agent writes it."""
    response = None if data is None else base64.urlsafe_b64encode(data).decode()
    told = {"content-type": "application/ssi-agent-wire", "response": response}
    return json.dumps({"txn_id": txn_id, "response_data": told}).encode()


@pytest.mark.parametrize("name", LISTS)
async def test_an_answer_is_brought_to_the_pool(store_server: EmbeddedServer, name: str) -> None:
    async with mirror_world(store_server.address) as world:
        place, answers = world.pool.place, world.pools.answers
        responses = DirectResponses(world.store, answers, place, lists=LISTS)
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
        responses = DirectResponses(world.store, answers, place, lists=LISTS)
        bad = (b"{", b"[]", b"\xff", b'{"txn_id": "no name"}', written("x" * 100, b""))
        await world.store.call("RPUSH", "acapy_inbound_direct_resp", *bad, written("t", b"1"))
        assert await responses.step() == 6
        found = await answers.wait(place, "t", seconds=1)
        assert found is not None
        assert found.data == b"1"
        assert await responses.step() == 0


def test_relay_settings_without_topics_use_prefix() -> None:
    settings = RelayConfig(topic_prefix="a")
    assert settings.inbound == "a_inbound"
    assert settings.direct_responses == ("a_inbound_direct_resp", "a_inbound_direct_response")
    custom = RelayConfig(inbound_topic="in", direct_response_topic="back")
    assert (custom.inbound, custom.direct_responses) == ("in", ("back",))
