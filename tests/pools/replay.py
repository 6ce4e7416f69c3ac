"""Replay of a pool's record logs: the state that the recorded events lead to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from waystation.logs.records import RecordEntry


@dataclass
class Replay:
    """State of a pool after some events. An event that cannot happen fails the test."""

    #: Recipient key → numbers of its pending messages, in order.
    queues: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    #: Recipient key → worker that has taken its first message.
    taken: dict[str, str] = field(default_factory=dict)
    #: Recipient key → worker, `-` without one.
    owners: dict[str, str] = field(default_factory=dict)
    #: Numbers of acknowledged messages, in order, and of dead letters.
    acknowledged: list[int] = field(default_factory=list)
    dead: set[int] = field(default_factory=set)
    #: Kinds of all events, in order.
    kinds: list[str] = field(default_factory=list)

    def apply(self, entries: Iterable[RecordEntry]) -> Replay:
        """Apply the events of entries. Return this replay."""
        for entry in entries:
            for text, detail in entry.events:
                kind, *words = text.split(" ")
                self.kinds.append(kind)
                getattr(self, f"_{kind}")([int(each) for each in words], *detail or ())
        return self

    def _enqueued(self, words: list[int], key: str, *_: object) -> None:
        assert not self.queues[key] or words[0] > self.queues[key][-1]
        self.queues[key].append(words[0])

    def _redriven(self, words: list[int], key: str, *_: object) -> None:
        self.dead.remove(words[0])
        self._enqueued(words[1:], key)

    def _taken(self, words: list[int], key: str, worker: str) -> None:
        assert words[0] == self.queues[key][0], "only the first message of a key can be taken"
        assert key not in self.taken
        assert self.owners[key] == worker
        self.taken[key] = worker

    def _returned(self, words: list[int], key: str, worker: str) -> None:
        assert words[0] == self.queues[key][0]
        assert self.taken.pop(key) == worker

    def _acknowledged(self, words: list[int], key: str, worker: str) -> None:
        self._returned(words, key, worker)
        self.acknowledged.append(self.queues[key].pop(0))

    def _dead(self, words: list[int], key: str, worker: str, _: str) -> None:
        self._returned(words, key, worker)
        self.dead.add(self.queues[key].pop(0))

    def _popped(self, words: list[int], key: str, _: str) -> None:
        assert words[0] == self.queues[key].pop(0)

    def _dropped(self, words: list[int]) -> None:
        self.dead.remove(words[0])

    _purged = _dropped

    def _moved(self, _: list[int], key: str, worker: str, reason: str) -> None:
        assert reason
        assert key not in self.taken, "a key whose message is taken does not move"
        self.owners[key] = worker

    def _closed(self, words: list[int]) -> None:
        assert all(number <= words[0] for each in self.queues.values() for number in each)
        self.queues.clear()
        self.taken.clear()
        self.dead.clear()
