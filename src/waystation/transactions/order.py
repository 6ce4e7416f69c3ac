"""An order: what a client asks to be started, read and checked as a whole.

    {"type": "refund", "metadata": {"externalId": "r-17"}, "data": {"cents": 500}}
    {"transactions": [{"type": …}, …]}

Data is kept byte for byte. Metadata has the names that DATP clients know, ours (`startAt`,
`deadline`, `channel`, `topic`, `statusChanges`), and whatever else the client wants to find again.
The first thing that is wrong is an error that says where it is; then nothing of a request is
started. Whether a URL, a channel or a topic can be told anything is not known here.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from waystation.durations import duration_ms
from waystation.errors import InvalidInputError
from waystation.ids import require_name
from waystation.transactions.wanted import Wanted

#: Transactions of one request.
ORDERS_MAX = 1000
EXTERNAL_ID_LENGTH_MAX = 200
#: Times after this are not exact in every language; it is the year 9999.
_MS_MAX = 253_402_300_799_000
#: Names that have a place of their own, or belong to the station.
_OWN = frozenset(
    {
        *("deadline", "externalId", "reply", "startAt"),
        *("nodeGroup", "onChange", "onComplete", "owner", "transactionType"),
    }
)
_Zoned = Annotated[datetime, Meta(tz=True)]
#: A URL, or a name; empty is none.
_Where = Annotated[str, Meta(max_length=2000)]
#: What older clients say in `reply`.
_POLLS = {"shortpoll": "short", "longpoll": "long"}
_is_traceparent = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}").fullmatch
#: At the end of what msgspec says: where in the body it was.
_place = re.compile(r" - at `\$\.?(.*)`$").search


class Moment(msgspec.Struct, frozen=True):
    """A time as clients may write it: by the calendar, or so long after the start."""

    ms: int
    after_start: bool = False

    def in_ms(self, now_ms: int) -> int:
        """How long until then; never negative."""
        return self.ms if self.after_start else max(0, self.ms - now_ms)


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction as a client asks for it."""

    type: str
    #: JSON.
    data: bytes = b"null"
    #: JSON, less what is below.
    metadata: bytes = b"{}"
    external_id: str = ""
    start_at: Moment | None = None
    deadline: Moment | None = None
    traceparent: str = ""
    #: Who is to hear of it; None: nobody.
    wanted: Wanted | None = None
    #: The client waits for the end.
    long_poll: bool = False


class _Written(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    metadata: msgspec.Raw = msgspec.Raw(b"")
    data: msgspec.Raw = msgspec.Raw(b"null")


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str | None = None
    metadata: msgspec.Raw = msgspec.Raw(b"")
    data: msgspec.Raw = msgspec.Raw(b"null")
    transactions: list[_Written] | None = None


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """What has a meaning."""

    external_id: str | None = None
    poll: Literal["short", "long"] | None = None
    webhook: _Where | None = None
    channel: _Where | None = None
    topic: _Where | None = None
    progress_reports: bool | None = None
    status_changes: bool | None = None
    poll_reply_cancels_webhook: bool | None = None
    #: Of older clients: `shortpoll`, `longpoll`, or the URL of a webhook.
    reply: _Where | None = None
    lang: Annotated[str, Meta(max_length=100)] | None = None
    trace_level: str | int | None = None
    start_at: str | int | None = None
    deadline: str | int | None = None


_decode_body = msgspec.json.Decoder(_Body).decode
_decode_metadata = msgspec.json.Decoder(_Metadata).decode
_decode_names = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


def read_orders(body: bytes, *, traceparent: str = "") -> tuple[list[Order], bool]:
    """The orders of a request, and whether it has a list of them, be it of one."""
    try:
        found = _decode_body(body)
        # Raw pieces are looked through for their form, but not for their encoding.
        body.decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(error) from error
    trace = traceparent if _is_traceparent(traceparent) else ""
    if found.transactions is None:
        if found.type is None:
            raise InvalidInputError(
                "Say what to start.", field="type", hint="Give a type, or a list of transactions."
            )
        return [_order(found.type, found.metadata, found.data, trace, "")], False
    if found.type is not None or found.metadata or bytes(found.data) != b"null":
        raise InvalidInputError(
            "A list of transactions has nothing beside it.", field="transactions"
        )
    if not 1 <= len(found.transactions) <= ORDERS_MAX:
        raise InvalidInputError(
            f"A request starts 1 to {ORDERS_MAX} transactions.", field="transactions"
        )
    orders = [
        _order(each.type, each.metadata, each.data, trace, f"transactions[{position}].")
        for position, each in enumerate(found.transactions)
    ]
    for position, order in enumerate(orders):
        if order.long_poll:
            raise InvalidInputError(
                "The end of one transaction is waited for, not those of a list.",
                field=f"transactions[{position}].metadata.poll",
            )
    return orders, True


def read_moment(value: str | int, *, field: str) -> Moment:
    """A time as in RFC 3339, milliseconds since 1970, or a duration from the start."""
    if isinstance(value, int) and not isinstance(value, bool):
        if 0 <= value <= _MS_MAX:
            return Moment(value)
    elif isinstance(value, str) and len(value) <= 100:
        try:
            return Moment(round(msgspec.convert(value, _Zoned).timestamp() * 1000))
        except msgspec.ValidationError:
            pass
        try:
            return Moment(duration_ms(value, field=field), after_start=True)
        except InvalidInputError:
            pass
    raise InvalidInputError(
        f"{field} is not a time.",
        field=field,
        hint="Write 2030-01-31T12:00:00Z, milliseconds since 1970, or 30s, 5m, 2d from the start.",
    )


def check_external_id(value: str, *, field: str = "externalId") -> str:
    """An external id that can be kept, or an error that tells the rule."""
    if not value or len(value) > EXTERNAL_ID_LENGTH_MAX or not value.isprintable():
        raise InvalidInputError(
            f"{field} is not one that can be kept.",
            field=field,
            hint=f"Use 1 to {EXTERNAL_ID_LENGTH_MAX} characters that can be printed.",
        )
    return value


def _order(type_: str, metadata: bytes, data: bytes, trace: str, where: str) -> Order:
    require_name(type_, field=f"{where}type")
    kept, known = _metadata(bytes(metadata), f"{where}metadata")
    external_id, start_at, deadline, wanted, long_poll = "", None, None, None, False
    if known is not None:
        wanted, long_poll = _wanted(known), known.poll == "long"
        if known.external_id is not None:
            external_id = check_external_id(known.external_id, field=f"{where}metadata.externalId")
        if known.start_at is not None:
            start_at = read_moment(known.start_at, field=f"{where}metadata.startAt")
        if known.deadline is not None:
            deadline = read_moment(known.deadline, field=f"{where}metadata.deadline")
    return Order(
        type=type_,
        data=bytes(data),
        metadata=kept,
        external_id=external_id,
        start_at=start_at,
        deadline=deadline,
        traceparent=trace,
        wanted=wanted,
        long_poll=long_poll,
    )


def _wanted(known: _Metadata) -> Wanted | None:
    if not (known.webhook or known.channel or known.topic):
        return None
    return Wanted(
        webhook=known.webhook or "",
        channel=known.channel or "",
        topic=known.topic or "",
        progress=known.progress_reports is True,
        status=known.status_changes is True,
        poll_cancels=known.poll_reply_cancels_webhook is True,
    )


def _metadata(text: bytes, where: str) -> tuple[bytes, _Metadata | None]:
    if text in (b"", b"{}", b"null"):
        return b"{}", None
    try:
        known, found = _decode_metadata(text), _decode_names(text)
    except msgspec.MsgspecError as error:
        raise _unreadable(error, where) from error
    if _OWN.isdisjoint(found):
        return text, known
    kept: dict[str, object] = {k: value for k, value in found.items() if k not in _OWN}
    if known.reply:
        return _modern(kept, known, where)
    return _encode(kept), known


def _modern(
    kept: dict[str, object], known: _Metadata, where: str
) -> tuple[bytes, _Metadata | None]:
    """What an older client has said in `reply`, in the words of today."""
    reply = known.reply or ""
    name, value = ("poll", _POLLS[reply]) if reply in _POLLS else ("webhook", reply)
    if getattr(known, name) not in (None, value):
        raise InvalidInputError(f"{name} and reply contradict each other.", field=f"{where}.reply")
    kept[name] = value
    return _encode(kept), msgspec.structs.replace(known, **{name: value})


def _unreadable(error: Exception, where: str = "") -> InvalidInputError:
    text = str(error)
    if isinstance(error, RecursionError):
        text = "it is nested too deeply"
    elif isinstance(error, UnicodeDecodeError):
        text = "it is not UTF-8"
    found = _place(text)
    inner = found.group(1) if found is not None else ""
    field = ".".join(part for part in (where, inner) if part)
    told = text if found is None else text[: found.start()]
    return InvalidInputError(f"{field or 'The body'} cannot be accepted: {told}.", field=field)
