"""What clients get to see of transactions, and what they send to start them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from waystation.errors import InvalidInputError
from waystation.runtime.durations import Duration, duration_ms
from waystation.runtime.json_values import encode_json

#: What a switch can be set to.
Scalar = str | int | float | bool
#: A time, or how long after the start.
When = datetime | timedelta | str


class SummaryMetadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Which transaction, and how it stands."""

    owner: str
    tx_id: str
    external_id: str | None
    transaction_type: str
    status: str
    #: Milliseconds since 1970, as all times.
    completion_time: int | None
    last_updated: int
    #: One more with every change.
    sequence_of_update: int
    #: When the client was told the end first: by a wait, or by a webhook that arrived.
    notified_time: int | None


class TransactionSummary(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A transaction as it was when it was looked at."""

    metadata: SummaryMetadata
    #: JSON, byte for byte.
    progress_report: msgspec.Raw
    data: msgspec.Raw
    #: The start was known already.
    duplicate: bool = False
    #: Of a start: names in its metadata that look like options and have no effect.
    warnings: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Its id."""
        return self.metadata.tx_id

    @property
    def status(self) -> str:
        """Its final status once it has ended; before that its state."""
        return self.metadata.status

    @property
    def ended(self) -> bool:
        """Whether that is final."""
        return self.metadata.completion_time is not None

    @property
    def succeeded(self) -> bool:
        """Whether it has ended well."""
        return self.status == "success"

    @property
    def output(self) -> Any:
        """What it has ended with, decoded; None before that."""
        return msgspec.json.decode(self.data)

    @property
    def progress(self) -> Any:
        """The newest progress report, decoded; None without one."""
        return msgspec.json.decode(self.progress_report)


class TransactionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction in a list."""

    id: str
    external_id: str | None
    pipeline: str
    group: str
    state: str
    #: Final status; empty before.
    status: str
    since_ms: int
    wake_ms: int
    switch: str
    cancelling: bool


class TransactionPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a list of transactions."""

    transactions: list[TransactionInfo]
    cursor: str


class Switched(msgspec.Struct, frozen=True, kw_only=True):
    """What setting a switch has done."""

    outcome: Literal["nochange", "updated", "woken"]
    #: All switches of the transaction.
    switches: dict[str, Scalar]


class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    """What a cancel has done; `asked` ends with the next commit, or after the grace time."""

    outcome: Literal["cancelled", "asked", "known"]
    status: str


class JournalAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a step."""

    number: int
    outcome: str
    begun_ms: int
    ended_ms: int
    node: str
    note: str
    trace: str


class JournalLine(msgspec.Struct, frozen=True, kw_only=True):
    """What a step has logged."""

    time_ms: int
    level: str
    text: str


class JournalStep(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a step."""

    place: str
    type: str
    #: So far; the newest are in `last`.
    attempts: int
    last: list[JournalAttempt]
    logs: list[JournalLine]


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in a transaction."""

    id: str
    type: str
    state: str
    status: str
    started_ms: int
    cause: str
    note: str
    switches: dict[str, Scalar]
    steps: list[JournalStep]


class ChildInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A child of a Parallel."""

    number: int
    id: str
    state: str
    status: str


class Children(msgspec.Struct, frozen=True, kw_only=True):
    """The Parallel that is under way."""

    total: int
    created: int
    done: int
    policy: str
    children: list[ChildInfo]


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a transaction is where it is."""

    id: str
    code: str
    text: str
    facts: dict[str, Any]


def encode_order(
    type_: str,
    data: Any,
    *,
    external_id: str = "",
    metadata: Mapping[str, Any] | None = None,
    start_at: When | None = None,
    deadline: When | None = None,
) -> bytes:
    """The body of a start; `msgspec.Raw` is taken as JSON already."""
    known: dict[str, Any] = dict(metadata or {})
    for name, value in (("startAt", start_at), ("deadline", deadline)):
        if value is not None:
            known[name] = encode_moment(value, field=name)
    if external_id:
        known["externalId"] = external_id
    body: dict[str, Any] = {"type": type_, "data": data}
    if known:
        body["metadata"] = known
    return encode_body(body, field="data")


def encode_body(body: object, *, field: str) -> bytes:
    """A body as JSON; the error names the field that is most likely none."""
    try:
        return encode_json(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"The {field} is not JSON: {error}.", field=field) from error


def wait_seconds(at_most: Duration) -> float:
    """How long a wait may take."""
    return duration_ms(at_most, field="at_most") / 1000


def encode_moment(value: When, *, field: str) -> str | int:
    """A time, or how long from now, as the API takes it."""
    if isinstance(value, str):
        return value
    if isinstance(value, timedelta):
        return f"{duration_ms(value, field=field)}ms"
    if not isinstance(value, datetime):
        raise InvalidInputError(
            f"{field} is a datetime, a timedelta, or a text such as 30s.", field=field
        )
    if value.tzinfo is None:
        raise InvalidInputError(f"{field} needs a time zone.", field=field)
    return round(value.timestamp() * 1000)
