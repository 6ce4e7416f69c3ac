"""Helpers for a station with the history role and an ingest process without Spark."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from waystation import AsyncWaystation
from waystation.config import Config, HistoryConfig
from waystation.history import process
from waystation.history.role import HistoryRole
from waystation.history.status import read_status
from waystation.runtime.ids import RandomIds
from waystation.testing.station import Serving, quick_settings

#: Ingest process without Spark. It answers each request with an event of its argument, the last
#: one for all further requests: `ok`, `failed`, `echo`, which fails with the request as error,
#: `long`, which is a line that is no event, or `crash`, which ends the process. If the first
#: argument is a folder, each answer waits for a file there with the number of the request.
_SCRIPTED = """
import os, sys, time
print('{"type": "started", "spark": "4"}', flush=True)
answers = sys.argv[1:]
folder = answers.pop(0) if "/" in answers[0] else ""
for number, line in enumerate(sys.stdin, 1):
    while folder and not os.path.exists(f"{folder}/{number}"):
        time.sleep(0.01)
    answer = answers.pop(0) if len(answers) > 1 else answers[0]
    if answer == "crash":
        sys.exit(3)
    if answer == "echo":
        print('{"type": "failed", "code": "x", "error": "' + line.strip() + '"}', flush=True)
    elif answer == "long":
        print("x" * 1_000_000, flush=True)
    elif answer == "failed":
        print('{"type": "failed", "code": "history.lake-write", "error": "The disk is full."}',
              flush=True)
    else:
        print('{"type": "reading", "read": 0, "total": 1}', flush=True)
        print('{"type": "ended", "ingested": {"rows": 1, "rounds": 1}}', flush=True)
"""


def script(monkeypatch: pytest.MonkeyPatch, *answers: str) -> None:
    monkeypatch.setattr(process, "COMMAND", (sys.executable, "-c", _SCRIPTED, *answers))


def with_role(folder: Path, **more: Any) -> Config:
    history: dict[str, Any] = {"run": True, "every_seconds": 0.1, **more}
    return quick_settings(str(folder), history=HistoryConfig(**history))


def role_of(running: Serving) -> HistoryRole:
    assert running.node.history is not None
    return running.node.history


@asynccontextmanager
async def second_role(running: Serving) -> AsyncIterator[HistoryRole]:
    """Run the role of another node of the same store."""
    node = running.node
    other = HistoryRole(
        node.settings, node.opened, node.logs, clock=node.clock, identity=RandomIds()
    )
    async with other:
        yield other


async def produce(running: Serving, number: int) -> None:
    async with AsyncWaystation(running.url) as client:
        if number == 1:
            await client.topics.create("orders")
        await client.topics.produce("orders", {"n": number})


async def reported_at(running: Serving, *, after: bytes = b"0") -> bytes:
    at = await running.node.opened.store.call("HGET", "{waystation.history}:status", "role_ms")
    return at if at and at > after else b""


async def not_leased(running: Serving) -> bool:
    return not (await read_status(running.node.opened.store)).leased


async def in_state(running: Serving, state: str) -> Any:
    status = (await read_status(running.node.opened.store)).public
    return status if status.state == state else None
