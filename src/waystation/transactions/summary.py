"""The summary of a transaction: what its client is told, in the shape that DATP clients know."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from waystation.transactions.found import Found
from waystation.transactions.record import TransactionState, decode
from waystation.transactions.states import State

_NOTHING = msgspec.Raw(b"null")


class SummaryMetadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Which transaction, and how it stands."""

    owner: str
    tx_id: str
    external_id: str | None
    transaction_type: str
    #: Its final status; before that its state, and `running` for what is queued.
    status: str
    #: Milliseconds since 1970, as all times here.
    completion_time: int | None
    last_updated: int
    #: One more with every change; `after` of a wait for progress.
    sequence_of_update: int
    #: When the client was told the end first: by a long poll, or by a webhook that arrived.
    notified_time: int | None = None


class Summary(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The reply."""

    metadata: SummaryMetadata
    #: The newest one, until it has ended.
    progress_report: msgspec.Raw = _NOTHING
    #: Its output, once it has ended.
    data: msgspec.Raw = _NOTHING
    #: In the reply to a start: names of its metadata that look like options and have no effect.
    warnings: tuple[str, ...] | UnsetType = UNSET


class DuplicateSummary(Summary, frozen=True, kw_only=True, rename="camel"):
    """The reply to a start that was known already."""

    duplicate: bool = True


def shown_status(state: State, status: str | None) -> str:
    """What clients are told: queued or not is our concern."""
    return status or ("running" if state is State.QUEUED else state.value)


def summary_of(
    found: Found, *, duplicate: bool = False, kept: TransactionState | None = None
) -> Summary:
    """The summary of a transaction as it is kept; `kept` is its state, if that was read before."""
    head, kept = found.head, kept or decode(found.state)
    complete = head.state is State.COMPLETE
    kind = DuplicateSummary if duplicate else Summary
    return kind(
        metadata=SummaryMetadata(
            owner=head.owner,
            tx_id=found.id,
            external_id=kept.external_id or None,
            transaction_type=kept.type,
            status=shown_status(head.state, head.status),
            completion_time=head.since if complete else None,
            last_updated=head.since,
            sequence_of_update=head.version,
            notified_time=_ms(found.extras.get(b"notifiedTime", b"")),
        ),
        progress_report=_json(b"" if complete else found.extras.get(b"progress", b"")),
        data=_json(kept.output if complete else b""),
    )


def progress_at(found: Found) -> int:
    """The version that its newest progress report came with; 0 without one."""
    return int(found.extras.get(b"progressAt", b"0"))


def _ms(text: bytes) -> int | None:
    return int(text) if text else None


def _json(text: bytes) -> msgspec.Raw:
    return msgspec.Raw(text) if text else _NOTHING
