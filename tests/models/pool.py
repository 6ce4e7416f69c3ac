"""Model of a pool in plain Python: allowed owners of keys and outcomes of messages.

The model does not choose the worker of a key, because the assignment option does. It checks when a
key may move, which worker may take a message, and the effect of each answer. Times are in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

STALE = 17.0
LEASE = 31.0
ATTEMPTS = 3


@dataclass
class Worker:
    """Registered worker: its state and the time of its last sign of life."""

    state: str = "live"
    last: float = 0.0


@dataclass
class Held:
    """Lease of a worker on the message at the head of a key."""

    uid: str
    token: str
    until: float


@dataclass
class PoolModel:
    """Expected state of a pool: its workers, the owners of keys, and the messages of each key."""

    now: float = 0.0
    workers: dict[str, Worker] = field(default_factory=dict)
    #: Unsettled messages of each key: number and time of the enqueue.
    queues: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    tries: dict[str, int] = field(default_factory=dict)
    #: By key: lease on its head.
    held: dict[str, Held] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    dead: list[int] = field(default_factory=list)
    settled: list[int] = field(default_factory=list)

    def enqueued(self, key: str, number: int) -> None:
        self.queues.setdefault(key, []).append((number, self.now))

    def given(self, uid: str, key: str, number: int, token: str) -> None:
        """Record that a worker took a message. Fail unless the worker owns the key and its head."""
        assert self.queues[key][0][0] == number, "the message is not the first of its key"
        assert key not in self.held, "two workers have messages of one key"
        assert self.owners[key] == uid, "the worker does not own the key"
        self.held[key] = Held(uid, token, self.now + LEASE)

    def is_held(self, uid: str, key: str, number: int, token: str) -> bool:
        """Return True if the lease of a worker on a message is the current one."""
        found = self.held.get(key)
        return (
            found is not None
            and (found.uid, found.token) == (uid, token)
            and self.queues[key][0][0] == number
        )

    def settle(self, key: str, *, dead: bool = False) -> None:
        """Remove the first message of a key as settled, or as a dead letter."""
        number, _ = self.queues[key].pop(0)
        (self.dead if dead else self.settled).append(number)
        self.held.pop(key, None)
        self.tries[key] = 0

    def free(self, key: str, *, counted: bool) -> None:
        """Release the lease of a key. The message becomes a dead letter after the last attempt."""
        self.held.pop(key)
        self.tries[key] = self.tries.get(key, 0) + counted
        if self.tries[key] >= ATTEMPTS:
            self.settle(key, dead=True)

    def free_all(self, uid: str, *, counted: bool, over: bool = False) -> None:
        """Release all leases of a worker; with `over`, only those that have expired."""
        for key, each in [*self.held.items()]:
            if each.uid == uid and (not over or each.until <= self.now):
                self.free(key, counted=counted)

    def may_evict(self, uid: str) -> bool:
        """Return True if the pool may evict a worker.

        Both the worker and the oldest pending message of its keys must be older than `STALE`.
        """
        waiting = [
            self.queues[key][0][1]
            for key, owner in self.owners.items()
            if owner == uid and self.queues.get(key)
        ]
        last = self.workers[uid].last
        return bool(waiting) and self.now - max(last, min(waiting)) > STALE

    def must_evict(self, uid: str) -> bool:
        """Return True if a sweep has to evict a worker: it has a lease and is silent."""
        holds = any(each.uid == uid for each in self.held.values())
        return holds and self.now - self.workers[uid].last > STALE

    def move(self, key: str, to: str) -> None:
        """Record the new owner of a key. Fail if the key may not move."""
        before = self.owners.get(key, "-")
        if before != to:
            former = self.workers.get(before)
            assert former is None or former.state != "live", f"{key} left {before}, which is live"
            assert key not in self.held, "the key moved while a worker had its message"
            assert to == "-" or self.workers[to].state == "live", "the new owner is not live"
        self.owners[key] = to
