"""Native workers of which one is killed: no message is lost, and none is out of order.

F-30: what a worker had taken when it died is given to another, so it may come twice: at least once.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.store_faults import store_at
from tests.pools.native_worker import PLACE, TERMS
from waystation.pools import Assignments, Mail, Members
from waystation.pools.held import Letter
from waystation.store.client import Store
from waystation.testing.servers import private_server

ROOT = Path(__file__).resolve().parent.parent.parent
KEYS = [f"key-{number:03}" for number in range(200)]
PER_KEY = 10


def start(path: str, uid: str) -> subprocess.Popen[str]:
    """A worker that is registered."""
    known = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    running = subprocess.Popen(
        [sys.executable, "-m", "tests.pools.native_worker", path, uid],
        env={**os.environ, "PYTHONPATH": known},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    assert running.stdout.readline().strip() == uid
    return running


async def send(store: Store, numbers: range) -> None:
    for number in numbers:
        for first in range(0, len(KEYS), 100):
            letters = [
                Letter(f"{key}.{number}", key, b"%d" % number) for key in KEYS[first : first + 100]
            ]
            await Mail(store).enqueue(PLACE, TERMS, letters, remember_ms=60_000)


async def until_settled(store: Store) -> None:
    """Somebody sweeps, as upkeep does, until nothing is left."""
    assignments = Assignments(store)
    async with asyncio.timeout(90):
        while (await assignments.look(PLACE, TERMS)).pending:
            await assignments.sweep(PLACE, TERMS, forget_ms=60_000, retention_ms=None)
            await asyncio.sleep(0.1)


@pytest.mark.slow
async def test_of_2000_messages_none_is_lost_when_one_of_three_workers_is_killed() -> None:
    with private_server(cluster=False) as server:
        async with store_at(server.address) as store:
            await Members(store).open(PLACE, TERMS)
            running = [start(server.address.path, f"w-{number}") for number in range(3)]
            try:
                await send(store, range(PER_KEY // 2))
                while not await store.call("ZCARD", PLACE.key("taken:w-0")):
                    await asyncio.sleep(0)
                running[0].kill()
                await send(store, range(PER_KEY // 2, PER_KEY))
                await until_settled(store)
                found = await Assignments(store).look(PLACE, TERMS)
                assert (found.pending, found.dead) == (0, 0)
                twice = 0
                for key in KEYS:
                    lines = await store.call("LRANGE", f"played.{key}", 0, -1)
                    got = [int(each.split(b" ")[1]) for each in lines]
                    assert list(dict.fromkeys(got)) == list(range(PER_KEY)), key
                    assert got == sorted(got), f"{key} is out of order"
                    twice += len(got) - PER_KEY
                assert twice <= 20, "what the killed one had taken, and no more"
            finally:
                for each in running:
                    each.kill()
                    each.communicate()
