"""An order: what a client asks to be started, read and checked as a whole.

    {"type": "refund", "metadata": {"externalId": "r-17"}, "data": {"cents": 500}}
    {"transactions": [{"type": …}, …]}

Data is kept byte for byte. Metadata has the names that DATP clients know, ours (`startAt`,
`deadline`, `channel`, `topic`, `statusChanges`), and whatever else the client wants to find again.
The first thing that is wrong is an error that says where it is; then nothing of a request is
started. Whether a URL, a channel or a topic can be told anything is not known here.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from waystation.errors import InvalidInputError
from waystation.runtime.durations import duration_ms
from waystation.runtime.ids import require_name
from waystation.runtime.json_text import (
    check_depth,
    lone_surrogate_path,
    lone_surrogate_problem,
    too_deep,
)
from waystation.runtime.json_values import same_json
from waystation.transactions.wanted import Wanted

#: Transactions of one request.
ORDERS_MAX = 1000
EXTERNAL_ID_LENGTH_MAX = 200
#: Times after this are not exact in every language; it is the year 9999.
_MS_MAX = 253_402_300_799_000
#: Names that the station gives by itself.
_IGNORED = frozenset({"nodeGroup", "onChange", "onComplete", "owner", "transactionType"})
#: Names that have a place of their own, or belong to the station.
_OWN = frozenset({"deadline", "externalId", "reply", "startAt", *_IGNORED})
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
    #: What the client is told about its metadata, which was accepted all the same.
    warnings: tuple[str, ...] = ()


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
    #: The same, by the name that DATP's design gives it.
    cancel_webhook: bool | None = None
    #: Of older clients: `shortpoll`, `longpoll`, or the URL of a webhook.
    reply: _Where | None = None
    lang: Annotated[str, Meta(max_length=100)] | None = None
    trace_level: str | int | None = None
    start_at: str | int | None = None
    deadline: str | int | None = None


#: Options by the field of `Wanted`, and of `_Metadata`, that they are in.
_REPLIES = {
    "webhook": "webhook",
    "channel": "channel",
    "topic": "topic",
    "progress": "progressReports",
    "status": "statusChanges",
    "poll_cancels": "pollReplyCancelsWebhook",
}
_OTHERS = {"lang": "lang", "trace_level": "traceLevel"}
#: Names of metadata that are compared by their meaning, or, as `poll`, not at all.
_OPTIONS = _OWN | {each.encode_name for each in msgspec.structs.fields(_Metadata)}
#: Warnings of one order, names that it is looked through for them, and their length.
_WARNINGS_MAX = 10
_NAMES_MAX = 50
_NAME_LENGTH_MAX = 60
#: A slip of one letter in a shorter option would be another word.
_SLIP_LENGTH_MIN = 6
#: A name that has one of these in it, and is no option, is most likely meant as one.
_STEMS = {
    "cancelwebhook": "cancelWebhook",
    "cancelswebhook": "cancelWebhook",
    "webhook": "webhook",
    "progressreport": "progressReports",
    "statuschange": "statusChanges",
    "externalid": "externalId",
    "deadline": "deadline",
    "startat": "startAt",
    "tracelevel": "traceLevel",
}
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
    except RecursionError as error:
        raise too_deep("body") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        if (path := lone_surrogate_path(body)) is not None:
            raise InvalidInputError(
                lone_surrogate_problem(path),
                field=path,
                hint="JSON.stringify writes it for a cut string: call toWellFormed() before.",
            ) from error
        raise _unreadable(error) from error
    trace = traceparent if _is_traceparent(traceparent) else ""
    if found.transactions is None:
        if found.type is None:
            raise InvalidInputError(
                "Say what to start.", field="type", hint="Give a type, or a list of transactions."
            )
        return [_order(found.type, found.metadata, bytes(found.data), trace, "")], False
    if found.type is not None or found.metadata or bytes(found.data) != b"null":
        raise InvalidInputError(
            "A list of transactions has nothing beside it.", field="transactions"
        )
    if not 1 <= len(found.transactions) <= ORDERS_MAX:
        raise InvalidInputError(
            f"A request starts 1 to {ORDERS_MAX} transactions.", field="transactions"
        )
    orders = [
        _order(each.type, each.metadata, bytes(each.data), trace, f"transactions[{position}].")
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
    check_depth(data, field=f"{where}data")
    kept, known, warnings = _metadata(bytes(metadata), f"{where}metadata")
    external_id, start_at, deadline, wanted, long_poll = "", None, None, None, False
    if known is not None:
        if {known.poll_reply_cancels_webhook, known.cancel_webhook} == {True, False}:
            raise InvalidInputError(
                "pollReplyCancelsWebhook and cancelWebhook contradict each other.",
                field=f"{where}metadata.cancelWebhook",
            )
        wanted, long_poll = _wanted(known), known.poll == "long"
        if known.external_id is not None:
            external_id = check_external_id(known.external_id, field=f"{where}metadata.externalId")
        if known.start_at is not None:
            start_at = read_moment(known.start_at, field=f"{where}metadata.startAt")
        if known.deadline is not None:
            deadline = read_moment(known.deadline, field=f"{where}metadata.deadline")
    return Order(
        type=type_,
        data=data,
        metadata=kept,
        external_id=external_id,
        start_at=start_at,
        deadline=deadline,
        traceparent=trace,
        wanted=wanted,
        long_poll=long_poll,
        warnings=warnings,
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
        poll_cancels=known.poll_reply_cancels_webhook is True or known.cancel_webhook is True,
    )


def metadata_differences(kept: bytes, asked: bytes) -> list[str]:
    """Return the names in which the metadata of two starts differ, as paths.

    Options are compared by what they mean: null, false and no webhook at all are the same.
    """
    if kept == asked:
        return []
    try:
        first, second = _decode_metadata(kept), _decode_metadata(asked)
        names, others = _decode_names(kept), _decode_names(asked)
    except msgspec.MsgspecError:
        return ["metadata"]
    wanted, also = _wanted(first) or Wanted(), _wanted(second) or Wanted()
    found = [
        option for name, option in _REPLIES.items() if getattr(wanted, name) != getattr(also, name)
    ]
    found += [
        option for name, option in _OTHERS.items() if getattr(first, name) != getattr(second, name)
    ]
    for name in sorted((names.keys() | others.keys()) - _OPTIONS):
        if not same_json(bytes(names.get(name, b"")), bytes(others.get(name, b""))):
            found.append(name)
    return [f"metadata.{name}" for name in found]


def _metadata(text: bytes, where: str) -> tuple[bytes, _Metadata | None, tuple[str, ...]]:
    """What is kept of metadata, its options, and warnings."""
    if text in (b"", b"{}", b"null"):
        return b"{}", None, ()
    try:
        known, found = _decode_metadata(text), _decode_names(text)
    except msgspec.MsgspecError as error:
        raise _unreadable(error, where) from error
    warnings = _warnings(found, where)
    if _OWN.isdisjoint(found):
        return text, known, warnings
    kept: dict[str, object] = {k: value for k, value in found.items() if k not in _OWN}
    if known.reply:
        known = _modern(kept, known, where)
    return _encode(kept), known, warnings


def _modern(kept: dict[str, object], known: _Metadata, where: str) -> _Metadata:
    """What an older client has said in `reply`, in the words of today."""
    reply = known.reply or ""
    name, value = ("poll", _POLLS[reply]) if reply in _POLLS else ("webhook", reply)
    if getattr(known, name) not in (None, value):
        raise InvalidInputError(f"{name} and reply contradict each other.", field=f"{where}.reply")
    kept[name] = value
    return msgspec.structs.replace(known, **{name: value})


def _warnings(found: Iterable[str], where: str) -> tuple[str, ...]:
    """Name what looks like an option and has no effect; the metadata is accepted all the same."""
    told = []
    for name in itertools.islice(found, _NAMES_MAX):
        if name in _IGNORED:
            told.append(f"{where}.{name} is set by the station and was ignored.")
        elif name not in _OPTIONS and (option := meant_option(name)):
            told.append(
                f"{where}.{name} is not an option and has no effect. Did you mean {option}?"
            )
    return tuple(told[:_WARNINGS_MAX])


@functools.lru_cache(maxsize=4096)
def meant_option(name: str) -> str:
    """Return the option that an unknown name of metadata was most likely meant as, or nothing.

    Such a name is an option in other letters (`external_id`, `WEBHOOK`), one with a slip of one
    letter (`dedline`), or has an option in it (`webhookUrl`).
    """
    if len(name) > _NAME_LENGTH_MAX:
        return ""
    plain = _plain(name)
    if plain in _PLAIN_OPTIONS:
        return _PLAIN_OPTIONS[plain]
    for variant in (plain, *_one_letter_less(plain)):
        if variant in _SLIPS:
            return _SLIPS[variant]
    return next((option for stem, option in _STEMS.items() if stem in plain), "")


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "").replace(".", "")


def _one_letter_less(text: str) -> list[str]:
    return [text[:i] + text[i + 1 :] for i in range(len(text))]


_PLAIN_OPTIONS = {_plain(name): name for name in sorted(_OPTIONS - _IGNORED)}
#: Options, and what is left of them without one letter. Two texts of which one letter less is the
#: same differ by one letter, or by two that were swapped.
_SLIPS = {
    variant: name
    for plain, name in _PLAIN_OPTIONS.items()
    if len(plain) >= _SLIP_LENGTH_MIN
    for variant in (plain, *_one_letter_less(plain))
}


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
