"""Look-ups of the audit in the store and the archive.

A caller looks up a transaction in the store first. The archiver deletes it there only after it is
in the archive, so a transaction that neither look-up finds is lost.
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


class ExpectedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message without an end in the lake, and the place where its shard must have it."""

    project: str
    subscription: str
    generation: int
    shard: int
    #: `m<storage>.<partition>.<offset>`: in its topic; `r<number>`: in the retry queue;
    #: `d<number>`: dead letter.
    place: str

    @property
    def key_prefix(self) -> str:
        """Prefix of all store keys of the shard."""
        shard = f"{self.project}.{self.subscription}.{self.generation}.{self.shard}"
        return f"{{s.{shard}}}:"


class DeduplicatedTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that appends a message only if its id was not produced within a window."""

    project: str
    topic: str
    #: Numbers of the storage topics.
    storage: tuple[int, ...]
    window_ms: int
    #: Time at which the topic got this window; 0: when it was created.
    since_ms: int


class Live:
    """Connections to the store and the archive, for one thread. The caller closes them."""

    def __init__(self, url: str, archive: str = "") -> None:
        """Open the store of a URL, and the archive at a PostgreSQL URL or in a file; empty: none.

        Never create an archive. Raise ArchiveForeignError if it is not the archive that this data
        set names, and ArchiveUnavailableError if it cannot be opened.
        """
        self._logs = LogReader(url, follows_time=_has_time_machine(url))
        #: Number of partitions by log, read once so that the whole audit uses the same.
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
        """Close the connections."""
        self._logs.close()
        if self._archive is not None:
            self._archive.close()

    @property
    def has_archive(self) -> bool:
        """Whether the data set has an archive and the caller has named it."""
        return self._archive is not None

    def dataset(self) -> str:
        """Return the id of the data set in the store."""
        return self._logs.dataset()

    def partitions(self) -> set[tuple[str, int, str]]:
        """Return the partitions of all logs that history ingests, with the name of their table."""
        return {
            (log, partition, decoder.table.name)
            for log, partitions in self._logs.names().items()
            if (decoder := decoder_for(log)) is not None
            for partition in range(partitions)
        }

    def unrecorded(self) -> dict[tuple[str, int], int]:
        """Return how many events settings withheld from record logs, by partition."""
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
        """Return the id of a message of a topic; empty if the topic does not have it."""
        block = next(self._logs.blocks(span, on_gap="count"), None)
        if block is None or isinstance(block, Gap):
            return ""
        try:
            return unpack(block.payloads[0], project="").id
        except ValueError:
            return ""

    def partition_count(self, log: str) -> int:
        """Return the number of partitions of a log; 0 if it does not exist."""
        if self._partitions is None:
            self._partitions = self._logs.names()
        return self._partitions.get(log, 0)

    def is_deleted(self, project: str, subscription: str, generation: int) -> bool:
        """Return whether a subscription was deleted: its record log is sealed or does not exist."""
        log = f"s.{project}.{subscription}.{generation}"
        states = self._logs.states((log, shard) for shard in range(self.partition_count(log)))
        return any(state.sealed is not None for state in states.values()) or not states

    def messages(self, expected: Sequence[ExpectedMessage]) -> list[bool]:
        """Return whether each message is in its place, and not acknowledged if that is a topic."""
        commands: list[tuple[str, ...]] = []
        for each in expected:
            number = each.place[1:]
            if each.place.startswith("m"):
                at, _, offset = number.rpartition(".")
                commands.append(("HGET", f"{each.key_prefix}pos", at))
                commands.append(("ZSCORE", f"{each.key_prefix}acks:{at}", offset))
                commands.append(("EXISTS", f"{each.key_prefix}head"))
            else:
                queue = "retry" if each.place.startswith("r") else "dead"
                commands.append(("HEXISTS", f"{each.key_prefix}{queue}", number))
        replies = iter(self._logs.replies(commands))
        return [
            _is_pending(each, next(replies), next(replies), next(replies))
            if each.place.startswith("m")
            else bool(next(replies))
            for each in expected
        ]

    def channel_messages(
        self, wanted: Mapping[tuple[str, str], Sequence[int]]
    ) -> dict[tuple[str, str], FoundMessages]:
        """Look up messages of channels, by (project, channel) and clock."""

        async def search(store: Store) -> list[FoundMessages]:
            calls = (find_messages(store, *channel, clocks) for channel, clocks in wanted.items())
            return await asyncio.gather(*calls)

        return dict(zip(wanted, self._logs.use(search), strict=True))

    def pool_messages(
        self, wanted: Mapping[tuple[str, str, str], Sequence[int]]
    ) -> dict[tuple[str, str, str], FoundLetters]:
        """Look up the places of pool messages, by (project, pool, recipient key) and number."""

        async def search(store: Store) -> list[FoundLetters]:
            mail = Mail(store)
            calls = (
                mail.find(Place(project, pool), key, numbers)
                for (project, pool, key), numbers in wanted.items()
            )
            return await asyncio.gather(*calls)

        return dict(zip(wanted, self._logs.use(search), strict=True))

    def heads(self, ids: Sequence[str]) -> dict[str, Head]:
        """Return the heads of the transactions that are in the store, by id."""
        found = self._logs.fields([names.state(each) for each in ids], "head")
        return {each: parse(line) for each, line in zip(ids, found, strict=True) if line}

    def archived(self, ids: Sequence[str]) -> dict[str, ArchivedState]:
        """Return the states of the transactions that are in the archive, by id."""
        return self._archive.get(ids) if self._archive is not None else {}

    def deduplicated(self) -> list[DeduplicatedTopic]:
        """Return the topics whose definitions in the store have a deduplication window."""
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
                continue  # Written by another release. Ingest skips this log, too, with a warning.
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


def _is_pending(
    message: ExpectedMessage, position: bytes | None, acknowledged: object, has_shard: int
) -> bool:
    """Return whether a shard has not taken a message from its topic yet.

    A partition that the shard has not read yet has no position.
    """
    offset = int(message.place.rpartition(".")[2])
    return bool(has_shard) and int(position or 0) <= offset and acknowledged is None
