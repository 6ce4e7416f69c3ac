"""Trace: the rows of the lake that have data of a person, found by ids that stay in the lake.

A trace begins with messages of a group, transactions with an external id, or pool messages with a
recipient key. From there it follows, until it finds nothing new:

- messages to their deliveries, and by the delivery ids to the transactions, channel messages and
  pool messages that these deliveries made;
- transactions to their children (`parent_id`, `caused_by`), to the messages and pool messages that
  have their id as `cause`, to the channel messages of their steps and replies, and to the requests
  to webhooks about them.

It does not follow messages that a program sent without a cause, or whose cause is a message.

A trace reads the files of all versions of a table that still exist. So a trace after a crash finds
the same again, even if the rows that it began with have been blanked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from contextlib import suppress

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from waystation.channels.keys import channel_tag
from waystation.history.lake.files import read_batches
from waystation.history.lake.schema import (
    CHANNELS,
    DELIVERIES,
    MESSAGES,
    POOLS,
    TRANSACTIONS,
    WEBHOOK_ATTEMPTS,
    TableSchema,
)
from waystation.history.lake.table import LakeTable
from waystation.messages.envelope import Envelope
from waystation.subscriptions.endpoints.channel import id_in_channel
from waystation.subscriptions.endpoints.pipeline import external_id_of
from waystation.subscriptions.endpoints.pool import id_in_pool
from waystation.subscriptions.endpoints.protocol import Parcel
from waystation.subscriptions.positions import Position
from waystation.transactions.builtins.publish import channel_id_of
from waystation.transactions.reply_lanes import transaction_of

#: Tables with data of users, in the order in which their rows are blanked. `transactions` is the
#: last one, because a trace can begin with its external ids.
TRACED = (MESSAGES, DELIVERIES, CHANNELS, POOLS, WEBHOOK_ATTEMPTS, TRANSACTIONS)
#: Kinds of changes after the end of a transaction, which have its status.
_AFTER_END = pa.array(["notified", "lifted"])
#: Columns that identify the rows of each table.
_COLUMNS = {
    MESSAGES.name: ("dataset", "position", "id", "project", "topic", "group", "cause"),
    DELIVERIES.name: (
        *("dataset", "position", "message_id", "project", "group"),
        *("subscription", "incarnation"),
    ),
    TRANSACTIONS.name: (
        *("transaction_id", "project", "external_id", "parent_id", "caused_by"),
        *("kind", "status"),
    ),
    CHANNELS.name: ("project", "message_id"),
    POOLS.name: (
        *("dataset", "project", "pool", "number", "new_number", "message_id", "cause"),
        "recipient_key",
    ),
    WEBHOOK_ATTEMPTS.name: ("project", "channel", "delivery_id"),
}
#: Separates the parts of a key; no id has control characters.
_SEPARATOR = "\x1f"


class Person(msgspec.Struct, frozen=True, kw_only=True):
    """Names under which a person has data: the beginning of a trace."""

    project: str
    #: Group of messages, in all topics or in one; empty: none.
    group: str = ""
    topic: str = ""
    #: External id of transactions; empty: none.
    external_id: str = ""
    #: Recipient key of pool messages; empty: none.
    recipient_key: str = ""


class TableFiles(msgspec.Struct, frozen=True):
    """The files of a table that a trace reads."""

    table: LakeTable
    schema: TableSchema
    #: Files of the newest version without those of gaps.
    current: Sequence[str]
    #: Files of earlier versions, which vacuum has not deleted yet.
    former: Sequence[str]
    #: Files of no version: of tasks that have not committed yet, or that crashed.
    uncommitted: Sequence[str]


def table_files(table: LakeTable, schema: TableSchema) -> TableFiles:
    """Return the files of a table."""
    current = [file.path for file in table.listed() if file.row_state != "gap"]
    former, uncommitted = table.unlisted()
    return TableFiles(table, schema, current, former, uncommitted)


class Trace:
    """Ids of the rows of a person.

    All sets contain keys: values that are joined in the order of the columns in the comment.
    """

    def __init__(self, person: Person) -> None:
        self.person = person
        #: dataset, position, id
        self._messages: set[str] = set()
        #: dataset, project, id, group
        self._ids: set[str] = set()
        #: project, external id
        self._external_ids: set[str] = set()
        #: transaction id
        self.transactions: set[str] = set()
        #: transaction id
        self._ended: set[str] = set()
        #: project, id
        self._channel_ids: set[str] = set()
        #: project, id
        self._pool_ids: set[str] = set()
        #: dataset, project, pool, number
        self._pool_numbers: set[str] = set()
        if person.external_id:
            self._external_ids.add(_SEPARATOR.join((person.project, person.external_id)))

    @property
    def open_transactions(self) -> int:
        """Number of transactions without an end in the lake."""
        return len(self.transactions - self._ended)

    def follow(self, files: Sequence[TableFiles]) -> None:
        """Find all rows."""
        by_name = {each.schema.name: each for each in files}
        steps = (
            (MESSAGES, self._follow_messages),
            (DELIVERIES, self._follow_deliveries),
            (TRANSACTIONS, self._follow_transactions),
            (POOLS, self._follow_pools),
        )
        size = -1
        while size != (size := self._size()):
            for schema, step in steps:
                if schema.name in by_name:
                    for batch in _all_batches(by_name[schema.name], _COLUMNS[schema.name]):
                        step(batch)
        if TRANSACTIONS.name in by_name and CHANNELS.name in by_name:
            for batch in _all_batches(by_name[TRANSACTIONS.name], ("transaction_id", "attempts")):
                self._follow_steps(batch)

    def columns(self, schema: TableSchema) -> tuple[str, ...]:
        """Return the columns that `matches` needs."""
        return _COLUMNS[schema.name]

    def matches(self, schema: TableSchema, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Return which rows of a table have data of the person."""
        match schema.name:
            case MESSAGES.name:
                return _is_in(_key(batch, "dataset", "position", "id"), self._messages)
            case DELIVERIES.name:
                return self._match_deliveries(batch)
            case TRANSACTIONS.name:
                return _is_in(batch.column("transaction_id"), self.transactions)
            case CHANNELS.name:
                of_reply = _leading(batch.column("message_id"))
                return pc.or_(
                    _is_in(_key(batch, "project", "message_id"), self._channel_ids),
                    _is_in(of_reply, self.transactions),
                )
            case POOLS.name:
                return self._match_pools(batch)
            case _:
                return self._match_webhooks(batch)

    def is_external_id(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Return which rows of `transactions` have the external id of the person."""
        if not self.person.external_id:
            return pa.repeat(pa.scalar(False), batch.num_rows)
        return _equals(batch, "external_id", self.person.external_id)

    # -- One step of the trace ---------------------------------------------------------------

    def _follow_messages(self, batch: pa.RecordBatch) -> None:
        found = _is_in(batch.column("cause"), self.transactions)
        if self.person.group:
            of_group = pc.and_(self._in_project(batch), _equals(batch, "group", self.person.group))
            if self.person.topic:
                of_group = pc.and_(of_group, _equals(batch, "topic", self.person.topic))
            found = pc.or_(found, of_group)
        rows = batch.filter(found)
        self._messages.update(_key(rows, "dataset", "position", "id").to_pylist())
        self._ids.update(_key(rows, "dataset", "project", "id", "group").to_pylist())

    def _follow_deliveries(self, batch: pa.RecordBatch) -> None:
        found = self._match_deliveries(batch)
        if self.person.group:
            # A message that retention removed before it was ingested has deliveries nevertheless.
            of_group = pc.and_(self._in_project(batch), _equals(batch, "group", self.person.group))
            if self.person.topic:
                topic = pc.list_element(
                    pc.split_pattern(pc.fill_null(batch.column("position"), "/"), "/"), 1
                )
                of_group = pc.and_(of_group, pc.equal(topic, self.person.topic))
            found = pc.or_(found, of_group)
        rows = batch.filter(found)
        placed = rows.filter(pc.is_valid(rows.column("position")))
        self._messages.update(_key(placed, "dataset", "position", "message_id").to_pylist())
        self._ids.update(_key(rows, "dataset", "project", "message_id", "group").to_pylist())
        for row in placed.to_pylist():
            self._add_delivery_ids(row)

    def _add_delivery_ids(self, row: dict[str, str]) -> None:
        if row["message_id"] is None:
            return
        project = row["project"]
        _, _, storage, partition, offset = row["position"].split("/")
        parcel = Parcel(
            message=Envelope(id=row["message_id"], project=project, data=b""),
            position=Position(int(row["incarnation"]), int(storage), int(partition), int(offset)),
            attempt=1,
            subscription=row["subscription"],
            incarnation=int(row["incarnation"]),
        )
        for ids, found in (
            (self._external_ids, external_id_of(parcel)),
            (self._channel_ids, id_in_channel(parcel)),
            (self._pool_ids, id_in_pool(parcel)),
        ):
            ids.add(_SEPARATOR.join((project, found)))

    def _follow_transactions(self, batch: pa.RecordBatch) -> None:
        found = _is_in(_key(batch, "project", "external_id"), self._external_ids)
        for name in ("parent_id", "caused_by"):
            found = pc.or_(found, _is_in(batch.column(name), self.transactions))
        self.transactions.update(batch.filter(found).column("transaction_id").to_pylist())
        is_end = pc.and_(
            pc.is_valid(batch.column("status")),
            pc.invert(pc.is_in(batch.column("kind"), _AFTER_END)),
        )
        ended = pc.and_(is_end, _is_in(batch.column("transaction_id"), self.transactions))
        self._ended.update(batch.filter(ended).column("transaction_id").to_pylist())

    def _follow_steps(self, batch: pa.RecordBatch) -> None:
        """Find the ids under which steps published in channels."""
        rows = batch.filter(_is_in(batch.column("transaction_id"), self.transactions))
        for row in rows.to_pylist():
            for attempt in row["attempts"] or ():
                found = channel_id_of(row["transaction_id"], attempt["place"])
                self._channel_ids.add(_SEPARATOR.join((self.person.project, found)))

    def _follow_pools(self, batch: pa.RecordBatch) -> None:
        found = pc.or_(
            self._match_pools(batch),
            pc.or_(
                _is_in(batch.column("cause"), self.transactions),
                _is_in(_key(batch, "project", "message_id"), self._pool_ids),
            ),
        )
        if self.person.recipient_key:
            of_key = _equals(batch, "recipient_key", self.person.recipient_key)
            found = pc.or_(found, pc.and_(self._in_project(batch), of_key))
        rows = batch.filter(found)
        rows = rows.filter(pc.is_valid(rows.column("number")))
        self._pool_numbers.update(_key(rows, "dataset", "project", "pool", "number").to_pylist())
        again = rows.filter(pc.is_valid(rows.column("new_number")))
        self._pool_numbers.update(
            _key(again, "dataset", "project", "pool", "new_number").to_pylist()
        )

    # -- Matches -----------------------------------------------------------------------------

    def _match_deliveries(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        is_placed = pc.is_valid(batch.column("position"))
        by_position = _is_in(_key(batch, "dataset", "position", "message_id"), self._messages)
        by_id = _is_in(_key(batch, "dataset", "project", "message_id", "group"), self._ids)
        by_id = pc.and_(by_id, pc.is_valid(batch.column("message_id")))
        return pc.if_else(is_placed, by_position, by_id)

    def _match_pools(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        key = _key(batch, "dataset", "project", "pool", "number")
        return pc.and_(pc.is_valid(batch.column("number")), _is_in(key, self._pool_numbers))

    def _match_webhooks(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        found = _is_in(_leading(batch.column("delivery_id")), self.transactions)
        ids = [
            _channel_message(row["project"], row["channel"], row["delivery_id"] or "")
            for row in batch.to_pylist()
        ]
        of_reply = _leading(pa.array([each.partition(_SEPARATOR)[2] for each in ids], pa.string()))
        found = pc.or_(found, _is_in(of_reply, self.transactions))
        return pc.or_(found, _is_in(pa.array(ids, pa.string()), self._channel_ids))

    def _in_project(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        return _equals(batch, "project", self.person.project)

    def _size(self) -> int:
        sets = (self._messages, self._ids, self._external_ids, self.transactions)
        return sum(map(len, (*sets, self._channel_ids, self._pool_ids, self._pool_numbers)))


def file_batches(files: TableFiles, path: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield columns of a file."""
    schema = pa.schema([files.schema.schema.field(name) for name in columns])
    return read_batches(files.table.folder, path, schema)


def _all_batches(files: TableFiles, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for path in files.current:
        yield from file_batches(files, path, columns)
    for path in (*files.former, *files.uncommitted):
        # Vacuum may have deleted it, and a task may be writing it.
        with suppress(FileNotFoundError, pa.ArrowInvalid):
            yield from file_batches(files, path, columns)


def _channel_message(project: str | None, channel: str | None, delivery_id: str) -> str:
    """Return the key of the channel message that a request to a webhook is about."""
    if project is None or channel is None:
        return ""
    prefix = f"{channel_tag(project, channel)[1:-1]}."
    # The outbox appends a number, because a channel can have an id again after it has forgotten it.
    message_id, _, _ = delivery_id.removeprefix(prefix).rpartition(".")
    return _SEPARATOR.join((project, message_id))


def _leading(ids: pa.Array) -> pa.Array:
    """Return the transaction of each id of a reply."""
    return pa.array([None if each is None else transaction_of(each) for each in ids.to_pylist()])


def _key(batch: pa.RecordBatch, *names: str) -> pa.Array:
    columns = [pc.fill_null(batch.column(name).cast(pa.string()), "") for name in names]
    return pc.binary_join_element_wise(*columns, _SEPARATOR)


def _equals(batch: pa.RecordBatch, name: str, value: str) -> pa.BooleanArray:
    return pc.fill_null(pc.equal(batch.column(name), value), False)


def _is_in(values: pa.Array, wanted: Set[str]) -> pa.BooleanArray:
    if not wanted:
        return pa.repeat(pa.scalar(False), len(values))
    # A null is in no set.
    return pc.is_in(values.cast(pa.string()), pa.array(wanted, pa.string()))
