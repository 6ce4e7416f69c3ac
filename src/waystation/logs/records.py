"""Record logs of channels and pools: logs that several channels, or several pools, share.

A script can write only to keys of its own slot. On a cluster there is therefore one record log per
slot, whose name is chosen so that its keys are in that slot. On a single server, 16 logs share all
slots. A log has one partition.

A log is created when history has registered as a reader, before the next publish or enqueue of its
slot. Scripts record only if the log exists, so that a data set without a reader pays for one check
per call. `RecordLogs` reads the registration every few seconds.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from binascii import crc_hqx
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from waystation.errors import OffsetOutOfRangeError
from waystation.logs import keys
from waystation.logs.protocol import UNREAD_BYTES_MAX, Logs, Retention
from waystation.runtime.clock import Clock
from waystation.runtime.service import Service
from waystation.store.client import Store
from waystation.store.dataset import history_reader, register_history
from waystation.store.slots import SLOTS, slot_of
from waystation.types.common import FullPolicy, Record

#: Parts whose record logs are shared.
Kind = Literal["channels", "pools"]

#: Reader names of history: the yielding one, and the one of `history.full = "refuse"`.
YIELDING_READER, FIRM_READER = "~history", "history"
#: Byte limit of all record logs of a kind together.
BYTES_MAX = 256 * 1_048_576
#: Number of record logs of a kind on a single server.
LOGS_OF_SERVER = 16
#: Seconds between two reads of the registration of history.
READ_REGISTRATION_S = 5.0
#: First character of the argument of scripts that record. `-`: the setting `history.record`
#: excludes all record logs, so that the scripts only count.
_POLICIES = {"full": "f", "headers": "h", "none": "n"}
_EXCLUDED = "-"

_encode = msgspec.msgpack.Encoder().encode


def history_reader_name(full: FullPolicy) -> str:
    """Return the name under which history holds logs with a policy for full record logs."""
    return FIRM_READER if full == "refuse" else YIELDING_READER


def record_log(kind: Kind, tag: str, *, cluster: bool) -> str:
    """Return the name of the record log for the keys with a hash tag, which includes its braces."""
    slot = slot_of(tag)
    return f"{kind}.{_numbers(kind)[slot] if cluster else slot % LOGS_OF_SERVER}"


@functools.lru_cache(maxsize=1024)
def _cached_record_log(kind: Kind, tag: str, cluster: bool) -> str:
    # Cached, because each call of a pool needs the name. A channel keeps its own.
    return record_log(kind, tag, cluster=cluster)


def is_record_log(log: str, kind: Kind) -> bool:
    """Return True if a log is a record log of this kind, of a single server or of a cluster."""
    found, _, number = log.partition(".")
    return found == kind and number.isdigit()


@functools.cache
def _numbers(kind: Kind) -> Sequence[int]:
    """Return the number of the record log of each slot: the lowest one whose keys are in it."""
    found: dict[int, int] = {}
    for number in itertools.count():
        found.setdefault(crc_hqx(f"{kind}.{number}.0".encode(), 0) % SLOTS, number)
        if len(found) == SLOTS:
            return [found[slot] for slot in range(SLOTS)]
    raise AssertionError("count() never ends")


class RecordLogs(Service):
    """Names and creates record logs. The state is the registration, and the logs created so far.

    With `recorded` False, the setting `history.record` excludes record logs: none is created, and
    scripts count in the existing ones what they do not record. `register_as` registers history
    under this name when the service starts, unless it is registered; a node that runs history
    passes the name, so that the first message is recorded.
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
        share = SLOTS if self._cluster else LOGS_OF_SERVER
        self._retention = Retention(
            # A publish must not fail because history is behind, so the log drops what it lacks.
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
        """Return the name of the record log for the keys with a hash tag."""
        return _cached_record_log(kind, tag, self._cluster)

    def policy(self, record: Record) -> str:
        """Return the recording policy as scripts read it."""
        return _POLICIES[record] if self._recorded else _EXCLUDED

    def argument(self, record: Record, project: str, name: str) -> bytes:
        """Return the argument of scripts that record: the policy, then both names as msgpack."""
        return self.policy(record).encode() + _encode(project) + _encode(name)

    def needs_log(self, log: str) -> bool:
        """Return True if history is registered and this process has not created the log yet."""
        return bool(self._reader) and log not in self._created

    async def create_log(self, log: str) -> None:
        """Create a record log and hold it for history, unless it exists."""
        if await self._logs.create(log, 1, self._retention):
            # History may have read the log already, and the log may have dropped entries.
            with contextlib.suppress(OffsetOutOfRangeError):
                await self._logs.hold(log, 0, self._reader, 0)
        self._created.add(log)


def log_key(log: str) -> str:
    """Return the key of a record log's stream, from which scripts derive its other keys."""
    return keys.entries(log, 0)


# -- Entries ---------------------------------------------------------------------------------

#: Version of the entry layout.
FORMAT = 1


class RecordEntry(msgspec.Struct, array_like=True, frozen=True):
    """The events of one script call."""

    format: int
    #: Project, and name of the channel or pool; empty if the policy withholds the events.
    project: str
    name: str
    #: Each event as its words and its detail, whose type depends on the event.
    events: list[tuple[str, Any]]

    @property
    def is_withheld(self) -> bool:
        """True if the entry only counts that something happened, because of `record` none."""
        return not self.events


_decode = msgspec.msgpack.Decoder(RecordEntry).decode


def unpack_entry(payload: bytes) -> RecordEntry:
    """Decode an entry. Raise ValueError if it is invalid or was written by a later release."""
    try:
        entry = _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"not an entry of a record log: {error}") from error
    if entry.format != FORMAT:
        raise ValueError(f"entry of format {entry.format}; this release reads only format {FORMAT}")
    return entry
