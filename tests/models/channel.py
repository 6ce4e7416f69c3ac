"""Model of a channel in plain Python: the expected effect of each channel script."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.channels.helpers import CLOCK_MAX, CLOCK_MIN

#: Number of clocks. After the largest one follows the smallest one.
_ROUND = CLOCK_MAX - CLOCK_MIN + 1


def following(clock: int, steps: int = 1) -> int:
    """Return the clock `steps` after `clock`; the smallest one follows the largest."""
    return (clock - CLOCK_MIN + steps) % _ROUND + CLOCK_MIN


def distance(start: int, end: int) -> int:
    """Return the number of steps from one clock to a later one."""
    return (end - start) % _ROUND


@dataclass
class Expiring:
    """Stored value and the time at which it expires."""

    value: int | str
    expires_at: float


@dataclass
class ModelChannel:
    """Expected state of one channel of one project. Times are in seconds."""

    ttl: float
    now: float = 0.0
    clock: Expiring | None = None
    messages: dict[int, Expiring] = field(default_factory=dict)
    known: dict[str, Expiring] = field(default_factory=dict)
    cursors: dict[str, Expiring] = field(default_factory=dict)

    def advance(self, seconds: float) -> None:
        """Advance the time and remove expired entries."""
        self.now += seconds
        if self.clock and self.clock.expires_at <= self.now:
            self.clock = None
        for table in (self.messages, self.known, self.cursors):
            for key in [key for key, entry in table.items() if entry.expires_at <= self.now]:
                del table[key]

    def publish(self, message_id: str) -> tuple[int, bool]:
        """Append a message. Return its clock, and whether its id was published before."""
        if message_id in self.known:
            if self.clock:
                self.clock.expires_at = self._later
            return int(self.known[message_id].value), True
        value = following(int(self.clock.value)) if self.clock else 1
        self.clock = Expiring(value, self._later)
        self.messages[value] = Expiring(message_id, self._later)
        self.known[message_id] = Expiring(value, self._later)
        return value, False

    def subscribe(self, subscriber: str) -> bool:
        """Create or prolong a subscriber. Return True if the subscriber is new."""
        self.clock = Expiring(self.clock.value if self.clock else 0, self._later)
        if subscriber in self.cursors:
            self.cursors[subscriber].expires_at = self._later
            return False
        self.cursors[subscriber] = Expiring(self.clock.value, self._later)
        return True

    def unsubscribe(self, subscriber: str) -> bool:
        """Remove a subscriber. Return False if it does not exist."""
        return self.cursors.pop(subscriber, None) is not None

    def fetch(self, subscriber: str, limit: int) -> tuple[list[str], bool, int, int | None] | None:
        """Return (ids, more, expired, clock of the last id); None if the subscriber does not exist.

        Skip expired messages: the cursor moves behind those before the first message found.
        """
        if subscriber not in self.cursors or self.clock is None:
            return None
        cursor = self.cursors[subscriber]
        cursor.expires_at = self.clock.expires_at = self._later
        start, end = int(cursor.value), int(self.clock.value)
        found: list[str] = []
        last, gone, expired = start, 0, 0
        for step in range(1, distance(start, end) + 1):
            if len(found) == limit:
                break
            position = following(start, step)
            if position not in self.messages:
                gone += 1
                continue
            if not found:
                cursor.value = following(start, step - 1)
            found.append(str(self.messages[position].value))
            last, expired = position, gone
        if not found and limit:
            cursor.value, last, expired = end, end, gone
        return found, last != end, expired, last if found else None

    def ack(self, subscriber: str, clock: int) -> bool | None:
        """Move a cursor to `clock`. Return False if the clock is outside of the unread messages.

        Return None if the subscriber does not exist.
        """
        if subscriber not in self.cursors or self.clock is None:
            return None
        cursor = self.cursors[subscriber]
        start, end = int(cursor.value), int(self.clock.value)
        if not 0 < distance(start, clock) <= distance(start, end):
            return False
        self.cursors[subscriber] = Expiring(clock, self._later)
        self.clock.expires_at = self._later
        return True

    def seek(self, subscriber: str, how: str, target: float) -> tuple[int, int] | str | None:
        """Move a cursor. Return (cursor, unread), or 'range' if the target clock has expired.

        `how` is `beginning`, `clock`, `time` or `end`. Return None without the subscriber.
        """
        if subscriber not in self.cursors or self.clock is None:
            return None
        end, unread = int(self.clock.value), 0
        while how != "end" and (found := self.messages.get(following(end, -unread))):
            if how == "time" and found.expires_at - self.ttl < target:
                break
            unread += 1
        if how == "clock":
            wanted = distance(int(target), end)
            if wanted > unread:
                return "range"
            unread = wanted
        cursor = following(end, -unread)
        self.cursors[subscriber] = Expiring(cursor, self._later)
        self.clock.expires_at = self._later
        return cursor, unread

    def keys(self, tag: str) -> dict[str, tuple[str, float]]:
        """Return all store keys of the channel with their values and seconds until expiry."""
        entries = {f"c.{tag}.m.{clock}": entry for clock, entry in self.messages.items()}
        entries |= {f"c.{tag}.mid.{name}": entry for name, entry in self.known.items()}
        entries |= {f"c.{tag}.r.{name}": entry for name, entry in self.cursors.items()}
        if self.clock:
            entries[f"c.{tag}.clock"] = self.clock
        return {
            key: (
                f'{{"id":"{entry.value}","content":"{entry.value}"}}'
                if isinstance(entry.value, str)
                else str(entry.value),
                entry.expires_at - self.now,
            )
            for key, entry in entries.items()
        }

    @property
    def _later(self) -> float:
        return self.now + self.ttl
