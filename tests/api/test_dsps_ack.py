"""Ack: its parameters and replies, by the rules of DSPS; and what no rule foresaw."""

from __future__ import annotations

import logging
from urllib.parse import quote

import pytest

from tests.helpers.http import ask, async_wire, wire
from waystation.channels.model import encode_handle
from waystation.config import Config
from waystation.testing.station import serving

NOT_FOUND = "dsps.storage.subscription-not-found"
MALFORMED = "dsps.storage.ack-handle-malformed"


def polling(channel: str) -> str:
    return f"/channel/{channel}/subscription/polling/s"


@pytest.mark.parametrize("name", ["ackHandle", "receiptHandle"])
@pytest.mark.parametrize("escape", [quote, str], ids=["escaped", "as it is"])
def test_an_ack_takes_either_name_escaped_or_not(
    open_url: str, channel: str, name: str, escape: type
) -> None:
    with wire(open_url) as connection:
        connection.ask("PUT", polling(channel))
        for number in (1, 2):
            connection.ask("PUT", f"/channel/{channel}/message/m{number}", b"1")
        handle = connection.ask("GET", f"{polling(channel)}?max=1").json()["ackHandle"]

        for _ in range(2):  # the second one is stale, and is answered the same
            target = f"{polling(channel)}/message?_=7&{name}={escape(handle)}"
            acked = connection.ask("DELETE", target)
            assert (acked.status, acked.body) == (204, b"")
            assert acked.header("content-length") is None

        rest = connection.ask("GET", polling(channel)).json()["messages"]
        assert [message["messageID"] for message in rest] == ["m2"]


@pytest.mark.parametrize("query", ["", "?", "?ackHandle", "?ackHandle=", "?ackhandle=e30=", "?_=1"])
def test_an_ack_without_a_handle_is_400(open_url: str, channel: str, query: str) -> None:
    answer = ask(open_url, "DELETE", f"{polling(channel)}/message{query}")
    assert (answer.status, answer.json()) == (400, {"error": 'Missing "ackHandle" parameter'})


@pytest.mark.parametrize("subscribed", [True, False])
def test_a_handle_that_cannot_be_read_is_400_whether_or_not_the_subscriber_is_there(
    open_url: str, channel: str, subscribed: bool
) -> None:
    with wire(open_url) as connection:
        if subscribed:
            connection.ask("PUT", polling(channel))
        foreign = encode_handle("other", "s", 1)
        for handle in ("x", "%FF", "%00", "a%20b", foreign, "e30", "e30=x"):
            answer = connection.ask("DELETE", f"{polling(channel)}/message?ackHandle={handle}")
            assert (answer.status, answer.json()["code"]) == (400, MALFORMED), handle


def test_an_ack_of_an_unknown_subscriber_is_404_and_the_empty_handle_does_nothing(
    open_url: str, channel: str
) -> None:
    handle = encode_handle(channel, "s", 1)
    answer = ask(open_url, "DELETE", f"{polling(channel)}/message?ackHandle={handle}")
    assert (answer.status, answer.json()["code"]) == (404, NOT_FOUND)
    assert ask(open_url, "DELETE", f"{polling(channel)}/message?ackHandle=e30=").status == 204


async def test_a_500_has_no_body_and_is_logged(
    own_store_settings: Config, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(own_store_settings) as running, async_wire(running.url) as connection:
        store = running.node.opened.store
        await store.call("ACL", "SETUSER", "default", "-evalsha")

        answer = await connection.ask("PUT", polling("ch"))

        await store.call("ACL", "SETUSER", "default", "+evalsha")
        assert (answer.status, answer.body) == (500, b"")
        assert answer.header("content-length") == "0"
        # Not the maintenance of the node, which may have been refused in the same moment.
        lines = [
            record
            for record in caplog.records
            if record.levelno >= logging.ERROR and record.name == "waystation.http"
        ]
        assert [record.getMessage() for record in lines] == ["request failed"]
        # and the server goes on
        assert (await connection.ask("GET", "/livez")).status == 200
