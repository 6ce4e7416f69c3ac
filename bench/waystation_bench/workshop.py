"""A workshop: one store, and in turn those who work on it: a station of ours, and peers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import msgspec

from waystation.config import RecordLogs
from waystation.store.embedded.server import EmbeddedServer
from waystation.types.message import Durability
from waystation_bench import driver, servers
from waystation_bench.benchmark import BenchmarkError, Contender
from waystation_bench.children import Child
from waystation_bench.drain_load import STARTS_PER_SECOND
from waystation_bench.preparation import make_key
from waystation_bench.report import Sample
from waystation_bench.target import Target
from waystation_bench.transaction_peers import Rival, quantiles

#: Run by name, in processes of their own.
_SERVERS = servers.__name__
_DRIVER = driver.__name__
#: The longest that a job may take: a million transactions may have to be started for it.
_SECONDS_MAX = 900.0


class Workshop:
    """A store at one durability level, a driver, and those who work in turn."""

    def __init__(self, data: Path, level: Durability, peers: Mapping[str, Path]) -> None:
        self._data = data
        self._level: Durability = level
        self._peers = peers
        self._stack = ExitStack()

    def __enter__(self) -> Workshop:
        with ExitStack() as stack:
            self._data.mkdir(parents=True)
            asyncio.run(make_key(self._data))
            server = EmbeddedServer(self._data / "store", durability=self._level)
            self.store = stack.enter_context(server)
            self._target = Target(
                store_path=self.store.address.path,
                store_process=self.store.process_id,
                data=str(self._data),
                level=self._level,
            )
            self._driver = stack.enter_context(Child(_DRIVER))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def drains(self, steps: int, count: int) -> Contender:
        """A station works off what was started before."""
        name = "drain.ours" if steps == 1 else f"drain.ours_{steps}_steps"
        return Contender(name, "server", partial(self._drain, steps, count))

    def peer_drains(self, peer: str, count: int) -> Contender:
        """A peer works off what was put into its queue before."""
        return Contender(f"drain.{peer}", "server", partial(self._drain_peer, peer, count))

    def idles(self, station: Child, seconds: float) -> Contender:
        """A station has nothing to do."""
        job = partial(self.drive, "idle", seconds, station.process_id)
        return Contender("idle.ours", "server", job)

    def paces(self, station: Child, seconds: float) -> Contender:
        """Transactions come one by one."""
        return Contender("pace.ours", "server", partial(self._pace, station, seconds))

    def peer_paces(self, peer: str, seconds: float) -> Contender:
        """Jobs come one by one."""
        count = int(seconds * STARTS_PER_SECOND)
        job = partial(self._rival(peer).pace, count, STARTS_PER_SECOND)
        return Contender(f"pace.{peer}", "server", job)

    def weighs(self, station: Child, count: int) -> Contender:
        """Many are put to sleep."""
        job = partial(self.drive, "weigh", count, station.process_id)
        return Contender("weigh.ours", "server", job)

    def contender(self, name: str, job: str, amount: object) -> Contender:
        """One who needs nobody but the driver."""
        return Contender(name, "caller", partial(self.drive, job, amount))

    def empty(self) -> None:
        """Nothing is left of what was measured before."""
        self.drive("relax", 0)
        self.drive("restrain", 0)

    @contextmanager
    def working(self, record: RecordLogs = "full") -> Iterator[Child]:
        """A station that works, ready."""
        with Child(_SERVERS, "working", str(self._data), self._level, record) as station:
            station.ask({})
            yield station

    def drive(
        self, job: str, amount: object, process: int = 0, *, record: RecordLogs = "full"
    ) -> Sample:
        """One round of a job of the driver."""
        target = msgspec.structs.replace(self._target, process=process, record=record)
        question = {"job": job, "target": target, "amount": amount}
        answer = self._driver.ask(question, seconds_max=_SECONDS_MAX)
        return msgspec.convert(answer, Sample)

    def _drain(self, steps: int, count: int) -> Sample:
        self.drive(f"fill_{steps}", count)
        with self.working() as station:
            return self.drive("drain", count, station.process_id)

    def lives(self, record: RecordLogs, count: int) -> Contender:
        """Transactions from their start to their end, written down or not."""
        return Contender(f"transactions.{record}", "server", partial(self._live, record, count))

    def _live(self, record: RecordLogs, count: int) -> Sample:
        started = self.drive("fill_1", count, record=record)
        with self.working(record) as station:
            worked = self.drive("drain", count, station.process_id, record=record)
        return Sample(
            operations=count,
            seconds=started.seconds + worked.seconds,
            cpu_seconds=started.cpu_seconds + worked.cpu_seconds,
            store_cpu_seconds=started.store_cpu_seconds + worked.store_cpu_seconds,
        )

    def _drain_peer(self, peer: str, count: int) -> Sample:
        rival = self._rival(peer)
        self.drive("relax", 0)
        rival.fill(count)
        self.drive("restrain", 0)
        return rival.drain(count)

    def _pace(self, station: Child, seconds: float) -> Sample:
        station.ask({})
        sample = self.drive("pace", seconds, station.process_id)
        delays = sorted(station.ask({})["delays_ms"])
        if len(delays) != sample.operations:
            raise BenchmarkError(f"{len(delays)} of {sample.operations} steps were called.")
        return msgspec.structs.replace(sample, figures=quantiles(delays))

    def _rival(self, peer: str) -> Rival:
        return Rival(peer, self._peers[peer], self.store.address.path, self.store.process_id)
