"""The requests of DSPS's own clients, byte for byte, and the replies that they count on.

The JavaScript client runs on axios 0.21; on Node.js it opens a connection per request and calls
any body a form. The k6 script keeps its connection, sends no content type at all, and puts the ack
handle into the URL as it came.
"""

from __future__ import annotations

import json
import socket
import time
from typing import Any
from urllib.parse import quote

from tests.helpers.http import Answer, Wire, port_of, wire

SUBSCRIBER = "s-3f8e6a1c-52f4-4f0e-9d0b-6b1f3c0d9a77"
MESSAGE = "msg-9d2c7f6e-0b1a-4c3d-8e5f-7a6b5c4d3e2f"
CACHE_BUSTER = "_=1605340800000-0.8374612907415268"


# -- The JavaScript client -------------------------------------------------------------------


def axios(method: str, target: str, *, body: str | None = None, key: str = "") -> bytes:
    """What axios 0.21 sends on Node.js."""
    lines = [f"{method} {target} HTTP/1.1", "Accept: application/json, text/plain, */*"]
    if body is not None:
        lines.append("Content-Type: application/x-www-form-urlencoded")
    if key:
        lines.append(f"Authorization: Bearer {key}")
    lines.append("User-Agent: axios/0.21.1")
    if body is not None:
        lines.append(f"Content-Length: {len(body.encode())}")
    lines += ["Host: localhost:3000", "Connection: close"]
    if body is None and method == "PUT":
        lines.append("Content-Length: 0")
    return ("\r\n".join(lines) + "\r\n\r\n" + (body or "")).encode()


def exchange(url: str, data: bytes) -> Answer:
    """Sends a request on a connection of its own, which the server then closes."""
    with wire(url) as connection:
        connection.send(data)
        answer = connection.answer()
        assert answer.header("connection") == "close"
        assert connection.closed()
        return answer


def read_json(answer: Answer, status: int = 200) -> Any:
    assert answer.status == status
    assert answer.header("content-type") == "application/json"
    return answer.json()


def test_the_javascript_client_is_served_unmodified(open_url: str, channel: str) -> None:
    subscription = f"/channel/{channel}/subscription/polling/{SUBSCRIBER}"
    # Create
    created = exchange(open_url, axios("PUT", f"{subscription}?{CACHE_BUSTER}"))
    assert read_json(created) == {"channelID": channel, "subscriberID": SUBSCRIBER}
    # Publish: the content is a text of JSON, with a number that JavaScript would not keep
    content = '{"text":"Grüße <b>&amp;</b> 😀","total":12345678901234567890,"rate":1.0}'
    target = f"/channel/{channel}/message/{MESSAGE}?{CACHE_BUSTER}"
    published = exchange(open_url, axios("PUT", target, body=content))
    assert read_json(published) == {"channelID": channel, "messageID": MESSAGE}
    # Poll
    poll = axios("GET", f"{subscription}?{CACHE_BUSTER}&timeout=30s&max=32")
    polled = exchange(open_url, poll)
    fetched = read_json(polled)
    handle = fetched.pop("ackHandle")
    assert fetched == {
        "channelID": channel,
        "messages": [{"messageID": MESSAGE, "content": json.loads(content)}],
        "moreMessages": False,
    }
    assert b'"content":' + content.encode() + b"}" in polled.body
    # Ack: 204 is all that the client accepts
    target = f"{subscription}/message?{CACHE_BUSTER}&ackHandle={quote(handle, safe='')}"
    acked = exchange(open_url, axios("DELETE", target))
    assert (acked.status, acked.body) == (204, b"")
    # Close: the poll under way is dropped, then the subscriber is deleted
    with wire(open_url) as waiting:
        waiting.send(poll)
        deleted = exchange(open_url, axios("DELETE", f"{subscription}?{CACHE_BUSTER}"))
        assert read_json(deleted) == {"channelID": channel, "subscriberID": SUBSCRIBER}
        # A client that did not drop it would learn why
        assert read_json(waiting.answer(), 404)["code"] == "dsps.storage.subscription-not-found"


def test_an_empty_poll_of_the_javascript_client_takes_as_long_as_it_asked(
    open_url: str, channel: str
) -> None:
    """An earlier reply would make it sleep for the rest."""
    subscription = f"/channel/{channel}/subscription/polling/{SUBSCRIBER}"
    exchange(open_url, axios("PUT", f"{subscription}?{CACHE_BUSTER}"))
    with wire(open_url) as connection:
        begun = time.monotonic()
        connection.send(axios("GET", f"{subscription}?{CACHE_BUSTER}&timeout=1s&max=32"))
        assert read_json(connection.answer()) == {
            "channelID": channel,
            "messages": [],
            "moreMessages": False,
        }
        assert time.monotonic() - begun >= 1


def test_what_ends_the_javascript_client_has_the_codes_that_it_knows(
    open_url: str, channel: str
) -> None:
    subscription = f"/channel/{channel}/subscription/polling/{SUBSCRIBER}"
    gone = exchange(open_url, axios("GET", f"{subscription}?{CACHE_BUSTER}&timeout=30s&max=32"))
    assert read_json(gone, 404)["code"] == "dsps.storage.subscription-not-found"


# -- The k6 script ---------------------------------------------------------------------------


def k6(method: str, target: str, body: str | None = None) -> bytes:
    """What the k6 script sends: Go's client, which names a length for every PUT."""
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost:3000"]
    lines.append("User-Agent: k6/0.29.0 (https://k6.io/)")
    if method == "PUT":
        lines.append(f"Content-Length: {len(body or '')}")
    return ("\r\n".join(lines) + "\r\n\r\n" + (body or "")).encode()


def ask_k6(connection: Wire, method: str, target: str, body: str | None = None) -> Answer:
    connection.send(k6(method, target, body))
    return connection.answer()


def test_the_k6_script_is_served_unmodified(open_url: str, channel: str) -> None:
    subscription = f"/channel/{channel}/subscription/polling/sub-1"
    with wire(open_url) as subscriber, wire(open_url) as publisher:
        created = ask_k6(subscriber, "PUT", subscription)
        assert read_json(created) == {"channelID": channel, "subscriberID": "sub-1"}
        for round_ in range(3):
            ids = [f"1-{round_}-{number}" for number in range(3)]
            for message_id in ids:
                body = f'{{"at":{1605340800000 + round_}}}'
                target = f"/channel/{channel}/message/{message_id}"
                published = ask_k6(publisher, "PUT", target, body)
                assert read_json(published) == {"channelID": channel, "messageID": message_id}
            answer = ask_k6(subscriber, "GET", f"{subscription}?timeout=3s")
            fetched = read_json(answer)
            assert [message["messageID"] for message in fetched["messages"]] == ids
            assert answer.body.count(b'"content":' + body.encode() + b"}") == 3
            # The handle goes into the URL as it is
            target = f"{subscription}/message?ackHandle={fetched['ackHandle']}"
            assert ask_k6(subscriber, "DELETE", target).status == 204
        deleted = ask_k6(subscriber, "DELETE", subscription)
        assert read_json(deleted) == {"channelID": channel, "subscriberID": "sub-1"}


def test_a_poll_of_the_k6_script_gets_what_is_published_while_it_waits(
    open_url: str, channel: str
) -> None:
    subscription = f"/channel/{channel}/subscription/polling/sub-1"
    with wire(open_url) as subscriber, wire(open_url) as publisher:
        ask_k6(subscriber, "PUT", subscription)
        subscriber.send(k6("GET", f"{subscription}?timeout=20s"))
        ask_k6(publisher, "PUT", f"/channel/{channel}/message/1-0-0", '{"at":1}')
        assert len(read_json(subscriber.answer())["messages"]) == 1


# -- Both ------------------------------------------------------------------------------------


def test_both_clients_share_one_channel(open_url: str, channel: str) -> None:
    subscription = f"/channel/{channel}/subscription/polling/{SUBSCRIBER}"
    exchange(open_url, axios("PUT", f"{subscription}?{CACHE_BUSTER}"))
    with wire(open_url) as publisher:
        ask_k6(publisher, "PUT", f"/channel/{channel}/message/7-0-0", '{"at":1}')
    fetched = exchange(open_url, axios("GET", f"{subscription}?{CACHE_BUSTER}"))
    assert read_json(fetched)["messages"] == [{"messageID": "7-0-0", "content": {"at": 1}}]


def test_requests_may_arrive_byte_by_byte(open_url: str, channel: str) -> None:
    subscription = f"/channel/{channel}/subscription/polling/sub-1"
    script = k6("PUT", subscription) + k6("PUT", f"/channel/{channel}/message/m", '{"at": 1}')
    script += k6("GET", f"{subscription}?timeout=3s")
    with socket.create_connection(("127.0.0.1", port_of(open_url)), timeout=20) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        replies = Wire(connection)
        for byte in script:
            connection.send(bytes([byte]))
        assert [replies.answer().status for _ in range(2)] == [200, 200]
        assert b'"content":{"at": 1}}' in replies.answer().body
