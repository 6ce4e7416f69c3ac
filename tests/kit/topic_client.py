"""A plain client of topics over HTTP, for tests of what really goes over the wire."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from tests.kit.wire import Answer, Wire, ask, wire

BATCH = "application/vnd.waystation.batch+json"
_numbers = itertools.count(1)


class TopicClient:
    """Speaks to one topic; a new name each time unless one is given."""

    def __init__(self, url: str, name: str = "", *, key: str = "") -> None:
        self.url = url
        self.name = name or f"topic-{next(_numbers)}"
        self._key = key

    @property
    def path(self) -> str:
        return f"/v1/topics/{self.name}"

    def ask(self, method: str, path: str, body: object = None) -> Answer:
        """Asks with a body of JSON, or bytes as they are."""
        given = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        return ask(self.url, method, path, given, key=self._key)

    def create(self, partitions: int = 4, **options: Any) -> dict[str, Any]:
        body = {"name": self.name, "partitions": partitions, "options": options}
        answer = self.ask("POST", "/v1/topics", body)
        assert answer.status == 201, answer
        made: dict[str, Any] = answer.json()
        return made

    def act(self, verb: str, body: object = None) -> Answer:
        """POST …/verb"""
        return self.ask("POST", f"{self.path}/{verb}", body if body is not None else b"")

    def produce(self, body: bytes, headers: Mapping[str, str] | None = None) -> Answer:
        return ask(self.url, "POST", f"{self.path}/messages", body, headers, key=self._key)

    def produce_raw(self, body: bytes, *headers: tuple[str, str]) -> Answer:
        """With headers that may be repeated."""
        lines = [f"POST {self.path}/messages HTTP/1.1", "Host: 127.0.0.1"]
        lines += [f"{name}: {value}" for name, value in headers]
        lines.append(f"Content-Length: {len(body)}")
        with wire(self.url) as connection:
            return sent(connection, "\r\n".join([*lines, "", ""]).encode() + body)

    def produce_batch(self, messages: Sequence[Mapping[str, object]]) -> Answer:
        return self.produce(json.dumps({"messages": messages}).encode(), {"Content-Type": BATCH})

    def browse(self, **query: object) -> Answer:
        return self.ask("GET", f"{self.path}/messages?{urlencode(query)}")

    def found(self, **query: object) -> list[dict[str, Any]]:
        """The messages of the first page, as they are shown."""
        answer = self.browse(**query)
        assert answer.status == 200, answer
        return [each["message"] for each in answer.json()["messages"]]

    def state(self) -> dict[str, Any]:
        answer = self.ask("GET", f"{self.path}/state")
        assert answer.status == 200, answer
        found: dict[str, Any] = answer.json()
        return found


def sent(connection: Wire, data: bytes) -> Answer:
    """Sends bytes and waits for the reply."""
    connection.send(data)
    return connection.answer("POST")


def problem(answer: Answer) -> tuple[int, str]:
    """Status and code of a problem, in its shape."""
    assert answer.header("content-type") == "application/problem+json", answer
    told = answer.json()
    assert told["status"] == answer.status
    assert told["detail"]
    return answer.status, told["code"]
