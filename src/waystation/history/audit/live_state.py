"""What is alive: looked up in the store, and in the archive behind it.

The store is asked first. What leaves it is in the archive by then, so what is in neither of them,
asked in this order, is nowhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType

import msgspec

from waystation.archive import ArchivedState
from waystation.archive.scan import ArchiveScan
from waystation.channels.queries import FoundMessages, find_messages
from waystation.errors import ArchiveForeignError, ArchiveUnavailableError
from waystation.history.decoders.partitions import topic_place
from waystation.history.decoders.registry import decoder_for
from waystation.history.log_reader import LogReader
from waystation.history.offsets import Gap, OffsetRange
from waystation.messages.envelope import unpack
from waystation.pools.held import FoundLetters
from waystation.pools.mail import Mail
from waystation.pools.names import Place
from waystation.store.client import Store
from waystation.store.keys import FORMAT, TIME, TIME_FOLLOWERS
from waystation.topics.keys import definition_key
from waystation.topics.model import decode_topic
from waystation.transactions import names
from waystation.transactions.head import Head, parse


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


class DeduplicatedTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that appends a message only if its id was not produced within a window."""

    project: str
    topic: str
    #: Numbers of its storage topics.
    storage: tuple[int, ...]
    window_ms: int
    #: Since when it has this window; 0: since it was created.
    since_ms: int


class Live:
    """Store and archive of a station, for one thread; close it when done."""

    def __init__(self, url: str, archive: str = "") -> None:
        """Open the store of a URL and its archive, a URL of PostgreSQL or a file; empty: none.

        Only the archive that this data set was stamped with is read, and none is ever created:
        ArchiveForeignError for another one, ArchiveUnavailableError where there is none.
        """
        self._logs = LogReader(url, follows_time=_has_time_machine(url))
        #: As they were when somebody asked first; what comes later is no part of this audit.
        self._partitions: dict[str, int] | None = None
        try:
            self._archive = _open_archive(self._logs, archive) if archive else None
        except BaseException:
            self._logs.close()
            raise

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
            self._archive.close()

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
            (log, partition, decoder.table.name)
            for log, partitions in self._logs.names().items()
            if (decoder := decoder_for(log)) is not None
            for partition in range(partitions)
        }

    def unrecorded(self) -> dict[tuple[str, int], int]:
        """Partitions of record logs that do not have all facts, and how many they lack."""
        states = self._logs.states((log, partition) for log, partition, _ in self.partitions())
        return {key: state.unrecorded for key, state in states.items() if state.unrecorded}

    def unread(self) -> dict[tuple[str, int], int]:
        """Return how many entries record logs dropped before a reader of history had registered."""
        states = self._logs.states((log, partition) for log, partition, _ in self.partitions())
        return {key: state.unread for key, state in states.items() if state.unread}

    def holes(self) -> list[Gap]:
        """Return the ranges that are missing from the logs, and that retention did not remove."""
        return self._logs.holes(sorted((log, number) for log, number, _ in self.partitions()))

    def message_id(self, span: OffsetRange) -> str:
        """The id of a message of a topic, if it is still there."""
        block = next(self._logs.blocks(span, on_gap="count"), None)
        if block is None or isinstance(block, Gap):
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

    def channel_messages(
        self, wanted: Mapping[tuple[str, str], Sequence[int]]
    ) -> dict[tuple[str, str], FoundMessages]:
        """Return which messages channels have, by (project, channel) and clocks."""

        async def search(store: Store) -> list[FoundMessages]:
            calls = (find_messages(store, *whose, clocks) for whose, clocks in wanted.items())
            return await asyncio.gather(*calls)

        return dict(zip(wanted, self._logs.use(search), strict=True))

    def pool_messages(
        self, wanted: Mapping[tuple[str, str, str], Sequence[int]]
    ) -> dict[tuple[str, str, str], FoundLetters]:
        """Return where messages of pools are, by (project, pool, recipient key) and numbers."""

        async def search(store: Store) -> list[FoundLetters]:
            mail = Mail(store)
            calls = (
                mail.find(Place(project, pool), key, numbers)
                for (project, pool, key), numbers in wanted.items()
            )
            return await asyncio.gather(*calls)

        return dict(zip(wanted, self._logs.use(search), strict=True))

    def heads(self, ids: Sequence[str]) -> dict[str, Head]:
        """Transactions that are in the store."""
        found = self._logs.fields([names.state(each) for each in ids], "head")
        return {each: parse(line) for each, line in zip(ids, found, strict=True) if line}

    def archived(self, ids: Sequence[str]) -> dict[str, ArchivedState]:
        """Transactions that are in the archive."""
        return self._archive.get(ids) if self._archive is not None else {}

    def deduplicated(self) -> list[DeduplicatedTopic]:
        """Return the topics whose ids count, as their definitions in the store say."""
        places = {
            (place.project, place.topic)
            for log, _, _ in self.partitions()
            if (place := topic_place(log, 0)) is not None
        }
        found: list[DeduplicatedTopic] = []
        bodies = self._logs.fields([definition_key(*each) for each in sorted(places)], "body")
        for body in bodies:
            try:
                topic = decode_topic(body) if body is not None else None
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue  # Of another release; ingest leaves its log out and says so.
            if topic is not None and topic.options.dedup_seconds:
                found.append(
                    DeduplicatedTopic(
                        project=topic.project,
                        topic=topic.name,
                        storage=tuple(each.number for each in topic.storage),
                        window_ms=round(topic.options.dedup_seconds * 1000),
                        since_ms=topic.dedup_since_ms,
                    )
                )
        return found


def _has_time_machine(url: str) -> bool:
    """Return whether a time machine moves the time of the data, or has moved it.

    The store then decides with that time whether a message has expired.
    """
    with LogReader(url) as logs:
        return any(logs.replies((("HLEN", TIME), ("HLEN", TIME_FOLLOWERS))))


def _open_archive(logs: LogReader, place: str) -> ArchiveScan | None:
    (stamp,) = logs.fields([FORMAT], "archive")
    if stamp is None:
        return None  # No node of this data set has opened an archive yet.
    hint = (
        "Name the data folder of the server with --data, or set archive.url; --no-live checks the"
        " lake alone."
    )
    try:
        archive = ArchiveScan(place)
    except ArchiveUnavailableError as error:
        raise ArchiveUnavailableError(
            f"The transactions of this store are in the archive {stamp.decode()}. {error.message}",
            hint=hint,
        ) from error
    try:
        found = archive.identity()
        if found != stamp.decode():
            raise ArchiveForeignError(
                f"The transactions of this store are in the archive {stamp.decode()}; this one is"
                f" {found}.",
                hint=hint,
            )
    except BaseException:
        archive.close()
        raise
    return archive


def _waits(owed: Owed, position: bytes | None, acknowledged: object, shard: int) -> bool:
    """Whether a message is still to be taken from its topic.

    A partition that its shard has not come to yet has no position.
    """
    offset = int(owed.place.rpartition(".")[2])
    return bool(shard) and int(position or 0) <= offset and acknowledged is None
