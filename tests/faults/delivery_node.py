"""A delivery node as a process of its own, which can be killed; and what it tells of its shards.

Nodes are forked from a server that has everything loaded, so another one is there at once. Each
writes down, before it sends anything, which shards it has under which epochs: so it is known
afterwards whose work was cut off.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import uvloop

from waystation.config import Config, StoreConfig, SubscriptionConfig
from waystation.node import open_node
from waystation.store.address import Address
from waystation.subscriptions import dispatch
from waystation.subscriptions.shard import Shard
from waystation.testing.station import quick_settings

_STOP_SECONDS_MAX = 30.0


def settings_of(
    folder: Path, store: Address, *, lease_seconds: float = 10.0, deliver: bool = True
) -> Config:
    """Config of a node; all of one folder share a catalogue."""
    return quick_settings(
        str(folder),
        store=StoreConfig(durability="memory", url=f"unix://{store.path}"),
        subscriptions=SubscriptionConfig(deliver=deliver, lease_seconds=lease_seconds),
    )


@dataclass(frozen=True)
class Epoch:
    """An ownership of a shard."""

    subscription: str
    shard: int
    epoch: int


@dataclass
class Told:
    """What nodes have written down."""

    owners: dict[Epoch, int] = field(default_factory=dict)
    #: Ownerships that ended with a refusal: their nodes stood still for longer than a lease.
    lost: set[Epoch] = field(default_factory=set)


class DeliveryNodes:
    """Starts nodes on one folder and one store, and ends them in any way."""

    def __init__(self, settings: Config) -> None:
        self._settings = settings
        self._file = Path(settings.data) / "shards.txt"
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([__name__])
        self.alive: list[multiprocessing.process.BaseProcess] = []
        #: Ids of processes.
        self.killed: set[int] = set()

    def start(self) -> None:
        """One more; returns at once."""
        process = self._context.Process(target=deliver, args=(self._settings, str(self._file)))
        process.start()
        self.alive.append(process)

    def kill(self, number: int) -> None:
        """kill -9 of one that is alive; returns when it is gone."""
        process = self.alive.pop(number)
        assert process.pid is not None
        self.killed.add(process.pid)
        process.kill()
        process.join()
        process.close()

    def signal(self, number: int, what: signal.Signals) -> None:
        """Sends a signal to one that is alive."""
        pid = self.alive[number].pid
        assert pid is not None
        os.kill(pid, what)

    def stop(self) -> None:
        """Ends all as an operator does, and expects that they end well."""
        for process in self.alive:
            process.terminate()
        codes = [_ended(process) for process in self.alive]
        self.alive.clear()
        assert set(codes) <= {0}, f"nodes ended with {codes}"

    @property
    def told(self) -> Told:
        """What they have written down so far."""
        told = Told()
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        for line in lines:
            pid, verb, subscription, shard, epoch = line.split()
            at = Epoch(subscription, int(shard), int(epoch))
            if verb == "took":
                assert at not in told.owners, f"{at} has two owners"
                told.owners[at] = int(pid)
            else:
                told.lost.add(at)
        return told


@contextmanager
def delivery_nodes(
    folder: Path, store: Address, *, lease_seconds: float
) -> Iterator[DeliveryNodes]:
    """Nodes for the length of the block; none is left behind."""
    nodes = DeliveryNodes(settings_of(folder, store, lease_seconds=lease_seconds))
    try:
        yield nodes
    finally:
        for process in nodes.alive:
            process.kill()
            _ended(process)


def _ended(process: multiprocessing.process.BaseProcess) -> int | None:
    process.join(_STOP_SECONDS_MAX)
    code = process.exitcode
    if code is None:
        process.kill()
        process.join()
    process.close()
    return code


# -- In the process of a node --------------------------------------------------------------------


def deliver(settings: Config, file: str) -> None:
    """Delivers until SIGTERM."""
    with open(file, "a", encoding="utf-8") as told:
        dispatch.Shard = telling(told)  # type: ignore[misc]
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_deliver(settings))


async def _deliver(settings: Config) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    node = await open_node(settings)
    await ended.wait()
    await node.close()


def telling(told: TextIO) -> type[Shard]:
    """Shards that write down whose they are."""

    class TellingShard(Shard):
        def _tell(self, verb: str) -> None:
            place, epoch = self.place, self._tenure.lease.epoch
            told.write(f"{os.getpid()} {verb} {place.subscription} {place.shard} {epoch}\n")
            told.flush()

        async def start(self) -> None:
            self._tell("took")
            await super().start()

        def _on_lost(self) -> None:
            self._tell("lost")
            super()._on_lost()

    return TellingShard
