"""Model of a topic in plain Python: the expected partition and offset of each message."""

from __future__ import annotations

from dataclasses import dataclass, field

from waystation.topics.router import Router, hash_of


@dataclass(frozen=True)
class ModelMessage:
    """Fields of a message that decide its partition and its size."""

    id: str
    group: str | None
    size: int

    @property
    def scope(self) -> tuple[str | None, str]:
        """Group and id; a second message with both is a duplicate."""
        return self.group, self.id

    @property
    def hashed(self) -> int:
        return hash_of(self.id if self.group is None else self.group)


@dataclass
class ModelPartition:
    """Messages of a partition in order. The offset of the first one is `first`."""

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
        """Delete the oldest messages while the partition has more than `max_bytes`.

        Messages that a hold needs stay unless `drops`; dropped ones are counted. Without holds,
        only `drops` deletes.
        """
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
    """Expected state of a topic whose deduplication never expires."""

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
        """Return storage topic and partition of each message of a batch, None for a duplicate.

        Switch to the next storage topic if a new message meets a sealed partition.
        """
        known = set(self.places)
        fresh = []
        for message in messages:
            fresh.append(message.scope not in known)
            known.add(message.scope)
        before = self.pointer
        partitions = [self.spreads[before].partition_of(message.hashed) for message in messages]
        sealed = [self.storage[before][partition].sealed for partition in partitions]
        # The producer answers known duplicates before it appends, so they meet no seal.
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
        """Record the offset of a new message. Call it in order of offsets."""
        found = self.storage[storage][partition]
        assert offset == found.end, "offsets are dense"
        found.messages.append(message)
        self.places[message.scope] = (storage, partition, offset)
