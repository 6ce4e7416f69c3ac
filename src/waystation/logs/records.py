"""Record logs of channels and pools: logs to which the scripts of a part append their events.

All channels of a slot share one record log, and so do all pools of a slot, because a script can
write only to keys of its own slot. On a cluster, each slot has its own log. On a single server, the
slots are divided among 16 logs. A log has one partition.

A log is created by the first publish or enqueue of its slot after history has registered as a
reader. Until then the scripts find no log and record nothing, so a data set without history pays
for one check per call. `RecordLogs` reads the registration every few seconds.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from binascii import crc_hqx
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from waystation.errors import OffsetOutOfRangeError, TransientError
from waystation.logs import keys
from waystation.logs.protocol import UNREAD_BYTES_MAX, Logs, Retention
from waystation.runtime.clock import Clock
from waystation.runtime.service import Service
from waystation.store.client import Store
from waystation.store.dataset import history_reader, register_history
from waystation.store.slots import SLOTS, slot_of
from waystation.types.common import FullPolicy, Record

#: Kinds of record logs: each record log contains the events of many channels or of many pools.
Kind = Literal["channels", "pools"]

#: Reader names under which history holds logs. At its byte limit, a log deletes entries that the
#: yielding reader has not read. It keeps those of the firm one (`history.full = "refuse"`).
YIELDING_READER, FIRM_READER = "~history", "history"
#: Byte limit of all record logs of a kind together.
BYTES_MAX = 256 * 1_048_576
#: Number of record logs of a kind on a single server.
LOGS_OF_SERVER = 16
#: Seconds between two reads of the registration of history.
READ_REGISTRATION_S = 5.0
#: Values of `record` as the scripts of channels and pools read them.
_POLICIES = {"full": "f", "headers": "h", "none": "n"}
#: Policy if the setting `history.record` is `none`: scripts count their events and append none.
_EXCLUDED = "-"

_encode = msgspec.msgpack.Encoder().encode


def history_reader_name(full: FullPolicy) -> str:
    """Return the reader name of history for a value of the setting `history.full`."""
    return FIRM_READER if full == "refuse" else YIELDING_READER


def record_log(kind: Kind, tag: str, *, cluster: bool) -> str:
    """Return the name of the record log of a channel or pool.

    `tag` is the hash tag of the channel or pool, with its braces. The hash tag determines the slot
    of all its keys, and the slot determines the record log.
    """
    slot = slot_of(tag)
    return f"{kind}.{_numbers(kind)[slot] if cluster else slot % LOGS_OF_SERVER}"


@functools.lru_cache(maxsize=1024)
def _cached_record_log(kind: Kind, tag: str, cluster: bool) -> str:
    # Cached, because a pool computes the name for each call. A channel stores its name.
    return record_log(kind, tag, cluster=cluster)


def is_record_log(log: str, kind: Kind) -> bool:
    """Return True if a log is a record log of this kind, of a single server or of a cluster."""
    found, _, number = log.partition(".")
    return found == kind and number.isdigit()


@functools.cache
def _numbers(kind: Kind) -> Sequence[int]:
    """Return the numbers of the record logs of a cluster, by slot.

    The record log of a slot has the lowest number with which the keys of the log are in this slot.
    """
    found: dict[int, int] = {}
    for number in itertools.count():
        found.setdefault(crc_hqx(f"{kind}.{number}.0".encode(), 0) % SLOTS, number)
        if len(found) == SLOTS:
            return [found[slot] for slot in range(SLOTS)]
    raise AssertionError("unreachable: the loop returns when each slot has a number")


class RecordLogs(Service):
    """Creates record logs, and returns their names and the arguments with which scripts record.

    The only state is the name under which history is registered, the logs created so far, and the
    time of the next attempt after a failed creation.

    `recorded` False stands for the setting `history.record = "none"`: this process creates no
    record log, and its scripts append no event to an existing one. They only count their events.
    `register_as` is the reader name under which the service registers history when it starts, if
    history is not registered. A node that runs history passes it, so that the first message is
    recorded.
    """

    grace_s = 0.0

    def __init__(
        self,
        store: Store,
        logs: Logs,
        *,
        clock: Clock,
        recorded: bool = True,
        register_as: str = "",
    ) -> None:
        super().__init__("records", clock=clock)
        self._store = store
        self._logs = logs
        self._recorded = recorded
        self._register_as = register_as
        self._cluster = store.address.cluster is not None
        self._reader = ""
        self._created: set[str] = set()
        #: Until when no log is created, because the creation of one has failed.
        self._retry_at_s = 0.0
        share = SLOTS if self._cluster else LOGS_OF_SERVER
        self._retention = Retention(
            # A publish must not fail because history is behind, so a full log drops its oldest
            # entries, also those that history has not read.
            policy="drop_and_count",
            max_bytes=max(BYTES_MAX // share, 65_536),
            unread_max_bytes=max(UNREAD_BYTES_MAX // share, 65_536),
        )

    async def on_start(self) -> None:
        if self._register_as:
            await register_history(self._store, self._register_as)
        await self.read_registration()

    async def run(self) -> None:
        await self.repeat(self.read_registration, every_s=READ_REGISTRATION_S)

    async def read_registration(self) -> None:
        """Read whether history is registered as a reader of this data set."""
        if self._recorded:
            self._reader = await history_reader(self._store)

    def log_of(self, kind: Kind, tag: str) -> str:
        """Return the name of the record log of a channel or pool, by the hash tag of its keys."""
        return _cached_record_log(kind, tag, self._cluster)

    def policy(self, record: Record) -> str:
        """Return the character that tells a script what to record, for a value of `record`."""
        return _POLICIES[record] if self._recorded else _EXCLUDED

    def argument(self, record: Record, project: str, name: str) -> bytes:
        """Return the argument that tells a script of a channel what to record.

        It is the character of the policy, followed by the names of project and channel as msgpack.
        """
        return self.policy(record).encode() + _encode(project) + _encode(name)

    def needs_log(self, log: str) -> bool:
        """Return True if history is registered and this process has not created the log yet."""
        if not self._reader or log in self._created:
            return False
        return self.clock.uptime_s() >= self._retry_at_s

    async def create_log(self, log: str) -> None:
        """Create a record log and hold it for history, unless it exists.

        If the store node with the register of logs is unavailable, log it and retry later: a
        publish or an enqueue to another node must not fail because it cannot be recorded. Until
        then its events are neither recorded nor counted.
        """
        try:
            if await self._logs.create(log, 1, self._retention):
                # The store rejects the hold if the entry at offset 0 was deleted since the log was
                # created, because history has read it or because the log was full.
                with contextlib.suppress(OffsetOutOfRangeError):
                    await self._logs.hold(log, 0, self._reader, 0)
        except TransientError as error:
            self._retry_at_s = self.clock.uptime_s() + READ_REGISTRATION_S
            self._log.warning("record log not created", log=log, problem=str(error))
        else:
            self._created.add(log)


def log_key(log: str) -> str:
    """Return the key of a record log's stream. Scripts append `:head` for the key of its head."""
    return keys.entries(log, 0)


# -- Entries ---------------------------------------------------------------------------------

#: Version of the entry layout.
FORMAT = 1


class RecordEntry(msgspec.Struct, array_like=True, frozen=True):
    """Events that one script call recorded."""

    format: int
    #: Project, and name of the channel or pool. Both are empty with `record` none.
    project: str
    name: str
    #: Events in their order, each as a text such as `published 7 3600` and further values. The page
    #: "Record logs of channels and pools" lists them. Empty with `record` none.
    events: list[tuple[str, Any]]

    @property
    def is_withheld(self) -> bool:
        """True if the entry has no names and no events, because `record` is `none`.

        Such an entry shows only that one call published or enqueued.
        """
        return not self.events


_decode = msgspec.msgpack.Decoder(RecordEntry).decode


def unpack_entry(payload: bytes) -> RecordEntry:
    """Decode an entry. Raise ValueError if it is invalid or was written by a later release."""
    try:
        entry = _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not an entry of a record log: {error}") from error
    if entry.format != FORMAT:
        raise ValueError(f"entry of format {entry.format}; this release reads only format {FORMAT}")
    return entry
