"""Pools in the demo: every key has one worker; one is killed, one is deployed anew, order stays."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from demo import pool_worker
from demo.process import child_environment
from demo.stage import Stage
from demo.station import DemoStation
from waystation.client import AsyncWaystation

_POOL = "agents"
_KEYS = 60
#: Messages of each key.
_EACH = 12
_WORKERS = ("ada", "bob", "cleo")
_EXIT_SECONDS_MAX = 20.0


class _Crew:
    """The workers' processes, and what they have written down."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """A worker comes."""
        file = self._folder / f"{_POOL}-{name}.txt"
        command = [sys.executable, "-m", pool_worker.__name__, self._url, _POOL, name, str(file)]
        with open(self._folder / "workers.log", "ab") as log:
            self._processes[name] = subprocess.Popen(  # noqa: S603 (our own)
                command, env=child_environment(), stderr=log
            )

    def end(self, name: str, number: signal.Signals) -> int:
        """A worker is told to stop, or is killed; its id when it has ended."""
        process = self._processes.pop(name)
        process.send_signal(number)
        process.wait(_EXIT_SECONDS_MAX)
        return process.pid

    def end_all(self) -> None:
        """Whoever is still there stops."""
        for name in list(self._processes):
            self.end(name, signal.SIGTERM)

    def seen(self) -> dict[str, list[int]]:
        """What the handlers were given, by key, in the order in which it happened."""
        lines = []
        for file in self._folder.glob(f"{_POOL}-*.txt"):
            whole = file.read_text(encoding="utf-8").rpartition("\n")[0]
            lines += [each.split(" ") for each in whole.splitlines()]
        found: dict[str, list[int]] = {}
        for _, key, number in sorted(lines, key=lambda each: int(each[0])):
            found.setdefault(key, []).append(int(number))
        return found

    def count(self) -> int:
        """Messages that were given to a handler, each once."""
        return sum(len(set(numbers)) for numbers in self.seen().values())


async def a_pool_loses_a_worker(stage: Stage, station: DemoStation) -> None:
    """Sends to many keys, kills a worker, deploys another anew, and counts all."""
    total = _KEYS * _EACH
    stage.act(f"{total} messages to {_KEYS} keys; one worker is killed, one deployed anew")
    crew = _Crew(station.url, station.data)
    try:
        async with AsyncWaystation(station.url) as client:
            await client.pools.create(_POOL, stale_seconds=1.0, lease_seconds=1.0)
            for name in _WORKERS:
                crew.start(name)
            await _until_live(client, *_WORKERS)
            accepted = await _send(client, range(_EACH // 3))
            stage.say(f"the map: {await _map(client)}")
            await _until(lambda: crew.count() >= _KEYS)
            stage.say(f"kill -9 {crew.end('bob', signal.SIGKILL)}: bob, with all its keys")
            accepted += await _send(client, range(_EACH // 3, 2 * _EACH // 3))
            await _until_settled(client)
            after = await _map(client)
            stage.say(f"the map: {after}")
            stage.check("keys that a live worker has", after["ada"] + after["cleo"], _KEYS)
            await _deploy(client, crew)
            accepted += await _send(client, range(2 * _EACH // 3, _EACH))
            await _until_settled(client)
            stage.say(f"the map: {await _map(client)}")
            found = await client.pools.why(_POOL, "key-0")
            stage.say(f"why: {found.text}")
            _check(stage, crew, accepted, total)
    finally:
        crew.end_all()


async def _deploy(client: AsyncWaystation, crew: _Crew) -> None:
    """A rolling deploy: the new one comes, then the old one hands its keys over and goes."""
    crew.start("dora")
    await _until_live(client, "dora")
    await asyncio.to_thread(crew.end, "ada", signal.SIGTERM)


def _check(stage: Stage, crew: _Crew, accepted: int, total: int) -> None:
    seen = crew.seen()
    stage.check("messages accepted", accepted, total)
    stage.check("messages handled", crew.count(), total)
    # Given out again after a kill is one more of the same, before the next of its key.
    in_order = all(numbers == sorted(numbers) for numbers in seen.values())
    stage.check("the messages of every key came in order", in_order, True)
    again = sum(len(numbers) for numbers in seen.values()) - total
    stage.say(f"handled twice because of the kill: {again}")


async def _send(client: AsyncWaystation, numbers: range) -> int:
    """One message to each key, round after round; how many were accepted."""
    accepted = 0
    for number in numbers:
        messages = [(f"key-{key}", {"number": number}) for key in range(_KEYS)]
        sent = await client.pools.send_many(_POOL, messages)
        accepted += sum(each.outcome == "added" for each in sent)
    return accepted


async def _map(client: AsyncWaystation) -> dict[str, int]:
    """How many keys each worker has."""
    return dict(sorted(Counter([each.owner async for each in client.pools.map(_POOL)]).items()))


async def _until_live(client: AsyncWaystation, *names: str) -> None:
    while True:
        workers = (await client.pools.workers(_POOL)).workers
        if {*names} <= {each.uid for each in workers if each.state == "live"}:
            return
        await asyncio.sleep(0.02)


async def _until_settled(client: AsyncWaystation) -> None:
    while (await client.pools.workers(_POOL)).pending:
        await asyncio.sleep(0.02)


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.02)
