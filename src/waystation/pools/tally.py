"""What pools count for metrics. Labels are names of pools: 200 of them, then `other`."""

from __future__ import annotations

from waystation.pools.definition import Pool
from waystation.pools.held import Batch, PoolLook
from waystation.pools.states import WorkerState
from waystation.telemetry import metrics

_NAMES_MAX = 200
OTHER = "other"


class Tally:
    """Counts of one process, and the gauges of the node that looks after pools."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        #: Pools whose gauges were set by the last look.
        self._looked: set[str] = set()

    def label(self, pool: Pool) -> str:
        """Under which name a pool is counted."""
        name = f"{pool.project}.{pool.name}"
        if name not in self._names:
            if len(self._names) >= _NAMES_MAX:
                return OTHER
            self._names.add(name)
        return name

    def enqueued(self, pool: Pool, batch: Batch) -> None:
        """Messages that came, by what became of them."""
        label = self.label(pool)
        for each in batch.items:
            metrics.pool_enqueued.of(label, each.outcome).inc()

    def acked(self, pool: Pool, outcome: str, count: int = 1) -> None:
        """Messages that workers have acknowledged."""
        metrics.pool_acked.of(self.label(pool), outcome).inc(count)

    def nacked(self, pool: Pool, outcome: str, count: int = 1) -> None:
        """Messages that workers have given back."""
        metrics.pool_nacked.of(self.label(pool), outcome).inc(count)

    def moved(self, pool: Pool, keys: int) -> None:
        """Keys that went from one worker to another."""
        if keys:
            metrics.pool_moved_keys.of(self.label(pool)).inc(keys)

    def evicted(self, pool: Pool, workers: int) -> None:
        """Workers that were stale."""
        if workers:
            metrics.pool_evicted.of(self.label(pool)).inc(workers)

    def show(self, looks: dict[Pool, PoolLook]) -> None:
        """Sets the gauges to what was seen of all pools; those that have gone are taken off."""
        shown: dict[str, list[PoolLook]] = {}
        for pool, look in looks.items():
            shown.setdefault(self.label(pool), []).append(look)
        for gone in self._looked - shown.keys():
            for gauge in metrics.pool_figures.values():
                gauge.remove(gone)
            for state in WorkerState:
                metrics.pool_workers.remove(gone, state.value)
        for label, several in shown.items():
            figures = {
                "pending": sum(each.pending for each in several),
                "dead_letters": sum(each.dead for each in several),
                "keys": sum(each.keys for each in several),
                "oldest_seconds": max(each.oldest_wait_ms for each in several) / 1000,
            }
            for name, gauge in metrics.pool_figures.items():
                gauge.labels(label).set(figures[name])
            states = [worker.state for each in several for worker in each.workers]
            for state in WorkerState:
                metrics.pool_workers.labels(label, state.value).set(states.count(state))
        self._looked = set(shown)
