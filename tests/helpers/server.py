"""A server in a thread, its API keys, a client of its topics, and required programs."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import uvloop

from tests.helpers.http import Answer, Wire, ask, wire
from waystation.access import Scope, new_key
from waystation.catalogue import ProjectRecord, SqliteCatalogue
from waystation.config import Config
from waystation.runtime.ids import RandomIds
from waystation.testing.station import Serving, serving
from waystation.transactions.app import App


@contextmanager
def background_station(settings: Config, *, app: App | None = None) -> Iterator[Serving]:
    """Run a server in a thread, with an optional app, for the length of the block."""
    started: Future[tuple[Serving, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def main() -> None:
        stop = asyncio.Event()
        async with serving(settings, app=app) as running:
            started.set_result((running, asyncio.get_running_loop(), stop))
            await stop.wait()

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(main())
        except BaseException as problem:
            if started.done():
                raise
            started.set_exception(problem)

    thread = threading.Thread(target=run)
    thread.start()
    running, loop, stop = started.result(timeout=30)
    try:
        yield running
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Keys:
    """Texts of API keys, by scope or state. Keys without `shop_` belong to project `default`."""

    admin: str
    write: str
    read: str
    expired: str
    revoked: str
    shop_admin: str
    shop_write: str
    #: Key in the valid form that does not exist.
    unknown: str = f"ws_{'0' * 16}_{'0' * 48}"


def make_keys(data: Path) -> Keys:
    """Write project `shop` and the keys into the catalogue of the data directory `data`."""
    return asyncio.run(_make_keys(data))


async def _make_keys(data: Path) -> Keys:
    catalogue = SqliteCatalogue(data / "catalogue.db")
    await catalogue.open()
    now_ms = time.time_ns() // 1_000_000

    async def make(scope: Scope, *, project: str = "default", **more: int) -> tuple[str, str]:
        text, record = new_key(
            RandomIds(), project=project, scope=scope, label="test", now_ms=now_ms, **more
        )
        await catalogue.add_key(record)
        return text, record.id

    try:
        await catalogue.add_project(ProjectRecord(name="shop", created_ms=now_ms))
        revoked, revoked_id = await make(Scope.ADMIN)
        await catalogue.revoke_key("default", revoked_id, now_ms=now_ms)
        return Keys(
            admin=(await make(Scope.ADMIN))[0],
            write=(await make(Scope.WRITE))[0],
            read=(await make(Scope.READ))[0],
            expired=(await make(Scope.ADMIN, expires_ms=now_ms - HOUR_MS))[0],
            revoked=revoked,
            shop_admin=(await make(Scope.ADMIN, project="shop"))[0],
            shop_write=(await make(Scope.WRITE, project="shop"))[0],
        )
    finally:
        await catalogue.close()


BATCH = "application/vnd.waystation.batch+json"
_numbers = itertools.count(1)


class TopicClient:
    """Raw HTTP client of one topic, with a new name unless `name` is given."""

    def __init__(self, url: str, name: str = "", *, key: str = "") -> None:
        self.url = url
        self.name = name or f"topic-{next(_numbers)}"
        self._key = key

    @property
    def path(self) -> str:
        return f"/v1/topics/{self.name}"

    def ask(self, method: str, path: str, body: object = None) -> Answer:
        """Send a request whose body is JSON, or bytes as they are."""
        given = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        return ask(self.url, method, path, given, key=self._key)

    def create(self, partitions: int = 4, **options: Any) -> dict[str, Any]:
        body = {"name": self.name, "partitions": partitions, "options": options}
        answer = self.ask("POST", "/v1/topics", body)
        assert answer.status == 201, answer
        made: dict[str, Any] = answer.json()
        return made

    def act(self, verb: str, body: object = None) -> Answer:
        """Send `POST …/verb`."""
        return self.ask("POST", f"{self.path}/{verb}", body if body is not None else b"")

    def produce(self, body: bytes, headers: Mapping[str, str] | None = None) -> Answer:
        return ask(self.url, "POST", f"{self.path}/messages", body, headers, key=self._key)

    def produce_raw(self, body: bytes, *headers: tuple[str, str]) -> Answer:
        """Produce one message with headers that may be repeated."""
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
        """Return the messages of the first page of browsing."""
        answer = self.browse(**query)
        assert answer.status == 200, answer
        return [each["message"] for each in answer.json()["messages"]]

    def state(self) -> dict[str, Any]:
        answer = self.ask("GET", f"{self.path}/state")
        assert answer.status == 200, answer
        found: dict[str, Any] = answer.json()
        return found


def sent(connection: Wire, data: bytes) -> Answer:
    """Send bytes and return the reply."""
    connection.send(data)
    return connection.answer("POST")


def problem(answer: Answer) -> tuple[int, str]:
    """Return status and code of a problem reply. Fail if the reply is not a complete problem."""
    assert answer.header("content-type") == "application/problem+json", answer
    body = answer.json()
    assert body["status"] == answer.status
    assert body["detail"]
    return answer.status, body["code"]


def require_tool(name: str) -> str:
    """Return the path of a program. Skip the test without it; with `CI` set, fail."""
    found = shutil.which(name)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"{name} is missing, and CI does not skip")
        pytest.skip(f"{name} is not installed")
    return found
