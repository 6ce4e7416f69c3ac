"""What is alive: looked up in the store, and in the archive behind it.

The store is asked first. What leaves it is in the archive by then, so what is in neither of them,
asked in this order, is nowhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType

import msgspec

from waystation.archive import Archive, ArchivedState
from waystation.envelope import unpack
from waystation.history.feeds import feed_of
from waystation.history.log_reader import LogReader
from waystation.history.spans import Span
from waystation.transactions import names
from waystation.transactions.head import Head, parse

#: Ids that the archive is asked for at once.
_ARCHIVE_AT_ONCE = 500


class Owed(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a shard still has to deal with."""

    project: str
    subscription: str
    generation: int
    shard: int
    #: `m<storage>.<partition>.<offset>` in its topic, `r<number>` in retry, `d<number>` dead.
    place: str

    @property
    def tag(self) -> str:
        """What every key of its shard begins with."""
        whose = f"{self.project}.{self.subscription}.{self.generation}.{self.shard}"
        return f"{{s.{whose}}}:"


class Live:
    """Store and archive of a station, for one thread; close it when done."""

    def __init__(self, url: str, archive: Archive | None = None) -> None:
        self._runner = asyncio.Runner()
        self._archive = archive
        self._logs = LogReader(url)
        #: As they were when somebody asked first; what comes later is no part of this audit.
        self._partitions: dict[str, int] | None = None
        if archive is not None:
            self._runner.run(archive.open())

    def __enter__(self) -> Live:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hangs up."""
        self._logs.close()
        if self._archive is not None:
            self._runner.run(self._archive.close())
        self._runner.close()

    @property
    def has_archive(self) -> bool:
        """Whether there is an archive to look into."""
        return self._archive is not None

    def dataset(self) -> str:
        """The data set that is in the store."""
        return self._logs.dataset()

    def partitions(self) -> set[tuple[str, int, str]]:
        """Partitions of logs that are recorded, each with the table that has all its entries."""
        return {
            (log, partition, feed.tables[0].name)
            for log, partitions in self._logs.names().items()
            if (feed := feed_of(log)) is not None
            for partition in range(partitions)
        }

    def unrecorded(self) -> dict[tuple[str, int], int]:
        """Partitions of record logs that do not have all facts, and how many they lack."""
        states = self._logs.states((log, partition) for log, partition, _ in self.partitions())
        return {key: state.unrecorded for key, state in states.items() if state.unrecorded}

    def message_id(self, span: Span) -> str:
        """The id of a message of a topic, if it is still there."""
        block = next(self._logs.blocks(span, on_gap="count"), span)
        if isinstance(block, Span):
            return ""
        try:
            return unpack(block.payloads[0], project="").id
        except ValueError:
            return ""

    def count(self, log: str) -> int:
        """How many partitions a log has; 0 if it is not there."""
        if self._partitions is None:
            self._partitions = self._logs.names()
        return self._partitions.get(log, 0)

    def has_left(self, project: str, subscription: str, generation: int) -> bool:
        """Whether a subscription was deleted: its record log takes nothing more, or is gone."""
        log = f"s.{project}.{subscription}.{generation}"
        states = self._logs.states((log, shard) for shard in range(self.count(log)))
        return any(state.sealed is not None for state in states.values()) or not states

    def messages(self, owed: Sequence[Owed]) -> list[bool]:
        """Whether each is where it has to be; in its topic: and not acknowledged."""
        commands: list[tuple[str, ...]] = []
        for each in owed:
            number = each.place[1:]
            if each.place.startswith("m"):
                at, _, offset = number.rpartition(".")
                commands.append(("HGET", f"{each.tag}pos", at))
                commands.append(("ZSCORE", f"{each.tag}acks:{at}", offset))
                commands.append(("EXISTS", f"{each.tag}head"))
            else:
                queue = "retry" if each.place.startswith("r") else "dead"
                commands.append(("HEXISTS", f"{each.tag}{queue}", number))
        replies = iter(self._logs.replies(commands))
        return [
            _waits(each, next(replies), next(replies), next(replies))
            if each.place.startswith("m")
            else bool(next(replies))
            for each in owed
        ]

    def heads(self, ids: Sequence[str]) -> dict[str, Head]:
        """Transactions that are in the store."""
        found = self._logs.fields([names.state(each) for each in ids], "head")
        return {each: parse(line) for each, line in zip(ids, found, strict=True) if line}

    def archived(self, ids: Sequence[str]) -> dict[str, ArchivedState]:
        """Transactions that are in the archive."""
        found: dict[str, ArchivedState] = {}
        if self._archive is not None:
            for first in range(0, len(ids), _ARCHIVE_AT_ONCE):
                some = ids[first : first + _ARCHIVE_AT_ONCE]
                found |= self._runner.run(self._archive.get(some))
        return found


def _waits(owed: Owed, position: bytes | None, acknowledged: object, shard: int) -> bool:
    """Whether a message is still to be taken from its topic.

    A partition that its shard has not come to yet has no position.
    """
    offset = int(owed.place.rpartition(".")[2])
    return bool(shard) and int(position or 0) <= offset and acknowledged is None
