"""Requests of the public DSPS clients, replayed byte for byte over a plain socket.

What the JavaScript client (on axios) and the load-test script (on k6) put on the wire: paths,
queries, headers and bodies as those programs write them. Replies are compared as JSON, the content
of messages as raw bytes.
"""

from __future__ import annotations

import json
import re
import socket
from dataclasses import dataclass
from urllib.parse import quote

import pytest


@dataclass(frozen=True)
class WireReply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> object:
        assert self.headers["content-type"].startswith("application/json")
        return json.loads(self.body)


class Wire:
    """One connection, kept open between requests as both clients keep theirs."""

    def __init__(self, url: str) -> None:
        self.host = url.removeprefix("http://")
        name, _, port = self.host.partition(":")
        self._socket = socket.create_connection((name, int(port)), timeout=20)
        self._left = b""

    def exchange(self, request: str) -> WireReply:
        """Sends a request written with plain newlines and `HOST`; reads its reply."""
        head, _, body = request.partition("\n\n")
        head = head.replace("HOST", self.host).replace("\n", "\r\n")
        self._socket.sendall(f"{head}\r\n\r\n{body}".encode())
        while b"\r\n\r\n" not in self._left:
            self._left += self._read()
        top, _, self._left = self._left.partition(b"\r\n\r\n")
        lines = top.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:])
        size = int(headers.get("content-length", "0"))
        while len(self._left) < size:
            self._left += self._read()
        content, self._left = self._left[:size], self._left[size:]
        return WireReply(int(lines[0].split()[1]), headers, content)

    def close(self) -> None:
        self._socket.close()

    def _read(self) -> bytes:
        data = self._socket.recv(65_536)
        assert data, "the station hung up"
        return data


AXIOS = """{method} {path} HTTP/1.1
Accept: application/json
User-Agent: axios/0.21.1
Host: HOST
Connection: keep-alive{more}

{body}"""
K6 = """{method} {path} HTTP/1.1
Host: HOST
User-Agent: k6/0.29.0 (https://k6.io/){more}

{body}"""
BUSTER = "_=1608739200000-0.8444218515250481"


def axios(method: str, path: str, *, query: str = "", body: str = "") -> str:
    """As the JavaScript client sends: a cache buster first, a string body as a form."""
    more = ""
    if body:
        more = f"\nContent-Type: application/x-www-form-urlencoded\nContent-Length: {len(body)}"
    elif method == "PUT":
        more = "\nContent-Type: application/x-www-form-urlencoded\nContent-Length: 0"
    full = f"{path}?{BUSTER}{'&' + query if query else ''}"
    return AXIOS.format(method=method, path=full, more=more, body=body)


def k6(method: str, path: str, *, body: str = "") -> str:
    """As k6 sends: no content type at all."""
    more = f"\nContent-Length: {len(body)}" if body or method == "PUT" else ""
    return K6.format(method=method, path=path, more=more, body=body)


@pytest.fixture
def wire(open_url: str) -> object:
    connection = Wire(open_url)
    yield connection
    connection.close()


def test_the_javascript_client_goes_through_its_whole_life(wire: Wire, channel: str) -> None:
    subscriber = "s-9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d"
    message = "msg-1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed"
    subscription = f"/channel/{channel}/subscription/polling/{subscriber}"
    content = '{"text":"h\\u00e9llo <&>","big":12345678901234567890,"one":1.0}'

    created = wire.exchange(axios("PUT", subscription))
    published = wire.exchange(axios("PUT", f"/channel/{channel}/message/{message}", body=content))
    polled = wire.exchange(axios("GET", subscription, query="timeout=30s&max=32"))
    reply = polled.json
    assert isinstance(reply, dict)
    handle = reply["ackHandle"]
    acked = wire.exchange(
        axios("DELETE", f"{subscription}/message", query=f"ackHandle={quote(handle, safe='')}")
    )
    empty = wire.exchange(axios("GET", subscription, query="max=32"))
    deleted = wire.exchange(axios("DELETE", subscription))
    gone = wire.exchange(axios("GET", subscription, query="timeout=30s&max=32"))

    assert created.json == {"channelID": channel, "subscriberID": subscriber}
    assert published.json == {"channelID": channel, "messageID": message}
    assert set(reply) == {"channelID", "messages", "moreMessages", "ackHandle"}
    assert reply["moreMessages"] is False
    assert f'"content":{content}'.encode() in polled.body
    assert (acked.status, acked.body) == (204, b"")
    assert empty.json == {"channelID": channel, "messages": [], "moreMessages": False}
    assert deleted.json == created.json
    assert gone.status == 404
    assert isinstance(gone.json, dict)
    assert gone.json["code"] == "dsps.storage.subscription-not-found"


def test_the_load_test_script_goes_through_an_iteration(wire: Wire, channel: str) -> None:
    subscription = f"/channel/{channel}/subscription/polling/sbsc-2"
    at = '{"at":1608739200000}'

    created = wire.exchange(k6("PUT", subscription))
    for number in range(3):
        path = f"/channel/{channel}/message/1-0-{number}"
        published = wire.exchange(k6("PUT", path, body=at))
        assert published.json == {"channelID": channel, "messageID": f"1-0-{number}"}
    fetched = wire.exchange(k6("GET", f"{subscription}?timeout=3s"))
    reply = fetched.json
    assert isinstance(reply, dict)
    handle = reply["ackHandle"]
    # Unescaped, as the script puts it there.
    acked = wire.exchange(k6("DELETE", f"{subscription}/message?ackHandle={handle}"))
    after = wire.exchange(k6("GET", subscription))

    assert created.status == 200
    assert [each["messageID"] for each in reply["messages"]] == ["1-0-0", "1-0-1", "1-0-2"]
    assert fetched.body.count(f'"content":{at}'.encode()) == 3
    assert re.fullmatch(r"[0-9A-Za-z=]+", handle), "nothing in it needs escaping"
    assert acked.status == 204
    assert after.json == {"channelID": channel, "messages": [], "moreMessages": False}


def test_both_clients_share_one_channel(wire: Wire, channel: str) -> None:
    wire.exchange(axios("PUT", f"/channel/{channel}/subscription/polling/s-1"))
    wire.exchange(k6("PUT", f"/channel/{channel}/message/7-0-0", body='{"at":1}'))

    got = wire.exchange(axios("GET", f"/channel/{channel}/subscription/polling/s-1")).json

    assert isinstance(got, dict)
    assert got["messages"] == [{"messageID": "7-0-0", "content": {"at": 1}}]
