"""A pool as it should be, in plain Python: who may have what, and what becomes of each message.

It does not say which worker gets a key, which is the policy's; it says when a key may change its
worker, who may be given a message, and what comes of what a worker says. Its time is in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

STALE = 17.0
LEASE = 31.0
ATTEMPTS = 3


@dataclass
class Worker:
    """One registered worker."""

    state: str = "live"
    last: float = 0.0


@dataclass
class Held:
    """A message that somebody was given."""

    uid: str
    token: str
    until: float


@dataclass
class PoolModel:
    """All that a pool promises of its keys."""

    now: float = 0.0
    workers: dict[str, Worker] = field(default_factory=dict)
    #: Unsettled messages of each key: number and when it was enqueued.
    queues: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    tries: dict[str, int] = field(default_factory=dict)
    #: By key: who was given its head.
    held: dict[str, Held] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    dead: list[int] = field(default_factory=list)
    settled: list[int] = field(default_factory=list)

    def enqueued(self, key: str, number: int) -> None:
        self.queues.setdefault(key, []).append((number, self.now))

    def given(self, uid: str, key: str, number: int, token: str) -> None:
        """A worker was given a message: it must be the first, and nobody else's."""
        assert self.queues[key][0][0] == number, "not the first of its key"
        assert key not in self.held, "two have a message of one key"
        assert self.owners[key] == uid, "a message of another's key"
        self.held[key] = Held(uid, token, self.now + LEASE)

    def is_held(self, uid: str, key: str, number: int, token: str) -> bool:
        """Whether what a worker says of a message counts."""
        found = self.held.get(key)
        return (
            found is not None
            and (found.uid, found.token) == (uid, token)
            and self.queues[key][0][0] == number
        )

    def settle(self, key: str, *, dead: bool = False) -> None:
        """Its first message has come to its end."""
        number, _ = self.queues[key].pop(0)
        (self.dead if dead else self.settled).append(number)
        self.held.pop(key, None)
        self.tries[key] = 0

    def free(self, key: str, *, counted: bool) -> None:
        """What was given out is not any more."""
        self.held.pop(key)
        self.tries[key] = self.tries.get(key, 0) + counted
        if self.tries[key] >= ATTEMPTS:
            self.settle(key, dead=True)

    def free_all(self, uid: str, *, counted: bool, over: bool = False) -> None:
        """The same for all of a worker; `over`: of those alone whose lease is."""
        for key, each in [*self.held.items()]:
            if each.uid == uid and (not over or each.until <= self.now):
                self.free(key, counted=counted)

    def may_evict(self, uid: str) -> bool:
        """The rule, with both terms: over the messages of the keys that are the worker's."""
        waiting = [
            self.queues[key][0][1]
            for key, owner in self.owners.items()
            if owner == uid and self.queues.get(key)
        ]
        last = self.workers[uid].last
        return bool(waiting) and self.now - max(last, min(waiting)) > STALE

    def must_evict(self, uid: str) -> bool:
        """What a look after the pool cannot pass over: it has taken something and is silent."""
        holds = any(each.uid == uid for each in self.held.values())
        return holds and self.now - self.workers[uid].last > STALE

    def move(self, key: str, to: str) -> None:
        """A key has another owner: there must be a reason."""
        before = self.owners.get(key, "-")
        if before != to:
            former = self.workers.get(before)
            assert former is None or former.state != "live", f"{key} left {before} for nothing"
            assert key not in self.held, "a key went while a message of it was taken"
            assert to == "-" or self.workers[to].state == "live", "a key came to who has none"
        self.owners[key] = to
