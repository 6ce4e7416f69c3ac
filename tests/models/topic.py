"""A topic in plain Python: what must be where, without scripts, retries or a second thought."""

from __future__ import annotations

from dataclasses import dataclass, field

from waystation.topics.router import Router, hash_of


@dataclass(frozen=True)
class ModelMessage:
    """A message as the model knows it."""

    id: str
    group: str | None
    size: int

    @property
    def scope(self) -> tuple[str | None, str]:
        """What deduplication knows it by."""
        return self.group, self.id

    @property
    def hashed(self) -> int:
        return hash_of(self.id if self.group is None else self.group)


@dataclass
class ModelPartition:
    """Messages in order; offsets are their places, from `first` on."""

    first: int = 0
    messages: list[ModelMessage] = field(default_factory=list)
    sealed: bool = False
    holds: dict[str, int] = field(default_factory=dict)
    dropped: int = 0

    @property
    def end(self) -> int:
        return self.first + len(self.messages)

    @property
    def bytes(self) -> int:
        return sum(message.size for message in self.messages)

    def trim(self, max_bytes: int, *, drops: bool) -> None:
        """Lets go of the oldest while there are too many bytes."""
        held = min(self.holds.values()) if self.holds else None
        while self.messages and self.bytes > max_bytes:
            needed = held is not None and self.first >= held
            if not drops and (held is None or needed):
                return
            self.dropped += needed
            self.first += 1
            del self.messages[0]


@dataclass
class ModelTopic:
    """A topic with deduplication that never forgets."""

    spreads: list[Router]
    storage: list[list[ModelPartition]]
    pointer: int = 0
    places: dict[tuple[str | None, str], tuple[int, int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, partitions: int) -> ModelTopic:
        return cls([Router(partitions)], [[ModelPartition() for _ in range(partitions)]])

    def add_storage(self, partitions: int) -> None:
        self.spreads.append(self.spreads[-1].followed_by(partitions))
        self.storage.append([ModelPartition() for _ in range(partitions)])

    def switch(self) -> None:
        if self.pointer + 1 < len(self.storage):
            for partition in self.storage[self.pointer]:
                partition.sealed = True
            self.pointer += 1

    def expect(self, messages: list[ModelMessage]) -> list[tuple[int, int] | None]:
        """Storage topic and partition of each message; None: it is a duplicate. Then it is so."""
        known = set(self.places)
        fresh = []
        for message in messages:
            fresh.append(message.scope not in known)
            known.add(message.scope)
        before = self.pointer
        partitions = [self.spreads[before].partition_of(message.hashed) for message in messages]
        sealed = [self.storage[before][partition].sealed for partition in partitions]
        # Duplicates that are remembered are answered before a seal is met.
        if any(sealed[i] and fresh[i] for i in range(len(messages))):
            self.switch()
        return [
            None
            if not fresh[i]
            else (self.pointer, self.spreads[self.pointer].partition_of(message.hashed))
            if sealed[i]
            else (before, partitions[i])
            for i, message in enumerate(messages)
        ]

    def place(self, message: ModelMessage, storage: int, partition: int, offset: int) -> None:
        """Takes over where a new message went; the caller gives them by rising offsets."""
        found = self.storage[storage][partition]
        assert offset == found.end, "offsets are dense"
        found.messages.append(message)
        self.places[message.scope] = (storage, partition, offset)
