"""Messages of a pool as they come and go over HTTP.

A body is one message, bytes as they are, with its recipient key in the query or a header; or a
batch. All of a request is accepted or nothing: the first thing that is wrong is an error that says
where it is, with the position of the message in a batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from waystation.api.request import Request
from waystation.errors import InvalidInputError, TooLargeError
from waystation.messages.envelope import (
    HEADERS_MAX,
    ID_BYTES,
    Envelope,
    Headers,
    check_header_name,
    check_header_value,
    content_type_of,
    is_kept_header,
    pack,
    unpack,
    valid_traceparent,
)
from waystation.messages.formats import (
    BATCH_TYPE,
    decode_body,
    is_batch_larger_than,
    message_json,
)
from waystation.pools.answers import ANSWER_TO, Answer
from waystation.pools.held import Letter, Taken
from waystation.pools.mail import BATCH_MAX
from waystation.pools.recipient import check_id, check_key
from waystation.runtime.durations import parse_duration
from waystation.runtime.ids import IdSource, SequentialIds
from waystation.runtime.json_text import check_depth, unshield

_KEY = "waystation-key"
_ID = "waystation-id"
_WAIT = "waystation-wait"
_TRACE = "traceparent"
_OWN = frozenset({_KEY, _ID, _WAIT})
_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"


class _Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    key: str
    id: str | None = None
    data: msgspec.Raw = msgspec.Raw()
    text: str | None = None
    base64: bytes | None = None
    content_type: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    cause: str | None = None
    traceparent: str | None = None


class _Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    messages: list[_Message]


class Payload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An answer as a worker sends it."""

    session: int
    answer_to: str
    data: msgspec.Raw = msgspec.Raw()
    text: str | None = None
    base64: bytes | None = None
    content_type: str | None = None


_decode_batch = msgspec.json.Decoder(_Batch).decode


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """What came with one request."""

    letters: list[Letter]
    batch: bool
    #: How long the client waits for an answer; None: it wants none.
    wait_seconds: float | None = None
    #: What the answer is given to.
    answer_to: str = ""


class PoolMessages:
    """Reads requests."""

    def __init__(self, identity: IdSource) -> None:
        self._identity = SequentialIds(identity)

    def read(self, project: str, pool: str, request: Request, body: bytes) -> Received:
        """The messages of a request to a pool."""
        own, kept = _headers(request.scope["headers"])
        trace = valid_traceparent(own.get(_TRACE))
        told = {name: _either(request, own, name) for name in _OWN}
        seconds = _wait_seconds(told[_WAIT])
        content_type = content_type_of(kept) or ""
        batch = content_type.partition(";")[0].strip().lower() == BATCH_TYPE
        if batch:
            for name in (_KEY, _ID):
                if told[name] is not None:
                    raise InvalidInputError(
                        f"{name} is for a single message; in a batch each has its own.", field=name
                    )
            envelopes = self._batch(project, body, trace)
        else:
            if told[_KEY] is None:
                raise InvalidInputError(
                    f"A message needs a recipient key: the parameter key, or the header {_KEY}.",
                    field="key",
                )
            envelope = Envelope(
                id=told[_ID] or self._identity.token(ID_BYTES),
                project=project,
                data=body,
                group=told[_KEY],
                headers=kept,
                traceparent=trace,
            )
            _check(envelope)
            envelopes = [envelope]
        answer_to = ""
        if seconds is not None:
            if len(envelopes) > 1:
                raise InvalidInputError("Of one message an answer can be waited for.", field="wait")
            (envelope,) = envelopes
            # Of the id, so that who sends the message again waits for the same answer.
            answer_to = _answer_id(project, pool, envelope.id)
            headers = (*envelope.headers, (ANSWER_TO, answer_to))
            envelopes = [msgspec.structs.replace(envelope, headers=headers)]
        letters = [Letter(each.id, each.group or "", pack(each)) for each in envelopes]
        return Received(letters=letters, batch=batch, wait_seconds=seconds, answer_to=answer_to)

    def _batch(self, project: str, body: bytes, trace: str | None) -> list[Envelope]:
        if is_batch_larger_than(BATCH_MAX, body):
            raise _too_many_messages()
        messages = decode_body(_decode_batch, body).messages
        if not messages:
            raise InvalidInputError("The batch is empty.", field="messages")
        if len(messages) > BATCH_MAX:
            raise _too_many_messages()
        envelopes = []
        for position, message in enumerate(messages):
            try:
                envelopes.append(self._one(project, message, trace))
            except InvalidInputError as error:
                error.message = f"Message {position}: {error.message}"
                error.field = f"messages[{position}].{error.field}"
                raise
        return envelopes

    def _one(self, project: str, message: _Message, trace: str | None) -> Envelope:
        data = unshield(bytes(message.data))
        check_depth(data, field="data")
        data, usual = payload_of(data, message.text, message.base64)
        content_type = usual if message.content_type is None else message.content_type
        kept = [
            (check_header_name(name), check_header_value(value, field="headers"))
            for name, value in message.headers
        ]
        if content_type and all(name != "content-type" for name, _ in kept):
            told = check_header_value(content_type, field="content_type")
            kept.insert(0, ("content-type", told))
        envelope = Envelope(
            id=self._identity.token(ID_BYTES) if message.id is None else message.id,
            project=project,
            data=data,
            group=message.key,
            headers=_few(tuple(kept)),
            cause=message.cause,
            traceparent=valid_traceparent(message.traceparent) or trace,
        )
        _check(envelope)
        return envelope


def payload_of(data: bytes, text: str | None, base64: bytes | None) -> tuple[bytes, str]:
    """The bytes that were given, and the content type that they have unless another is told."""
    if (data != b"") + (text is not None) + (base64 is not None) > 1:
        raise InvalidInputError("Only one of data, text and base64 can be given.", field="data")
    if text is not None:
        return text.encode(), _TEXT
    return (base64, "") if base64 is not None else (data, _JSON if data else "")


def shown_taken(taken: Taken, project: str) -> dict[str, object]:
    """A message as a worker is given it: what it gives back with an ack, and the message."""
    envelope = unpack(taken.packed, project=project)
    shown: dict[str, object] = {
        "key": taken.key,
        "epoch": taken.epoch,
        "number": taken.number,
        "token": taken.token,
        "tries": taken.tries,
        "crashes": taken.crashes,
        "enqueued_ms": taken.enqueued_ms,
        "message": message_json(envelope),
    }
    answer_to = next((value for name, value in envelope.headers if name == ANSWER_TO), None)
    if answer_to is not None:
        shown["answer_to"] = answer_to
    return shown


def shown_answer(answer: Answer | None, project: str) -> dict[str, object] | None:
    """What a worker answered, as a message is shown."""
    if answer is None:
        return None
    headers = (("content-type", answer.content_type),) if answer.content_type else ()
    shown = message_json(Envelope(id="-", project=project, data=answer.data, headers=headers))
    del shown["id"]
    return shown


def _headers(raw: Sequence[tuple[bytes, bytes]]) -> tuple[dict[str, str], Headers]:
    """What a request's headers say of its message, and those that the message keeps."""
    own: dict[str, str] = {}
    kept: list[tuple[str, str]] = []
    for raw_name, raw_value in raw:
        name = raw_name.decode("latin-1")
        ours = name in _OWN or name == _TRACE
        if not ours and name.startswith("waystation-"):
            raise InvalidInputError(
                f"There is no header {name[:80]}.",
                field=name[:80],
                hint=f"There are {', '.join(sorted(_OWN))}.",
            )
        if not ours and not is_kept_header(name):
            continue
        try:
            value = check_header_value(raw_value.decode(), field=name[:80])
        except UnicodeDecodeError as error:
            raise InvalidInputError(f"{name[:80]} is not UTF-8.", field=name[:80]) from error
        if ours and name in own:
            raise InvalidInputError(f"{name} is there more than once.", field=name)
        if ours:
            own[name] = value
        else:
            kept.append((check_header_name(name), value))
    return own, _few(tuple(kept))


def _few(headers: Headers) -> Headers:
    if len(headers) > HEADERS_MAX:
        raise TooLargeError(f"A message has at most {HEADERS_MAX} headers.", field="headers")
    return headers


def _check(envelope: Envelope) -> None:
    check_id(envelope.id)
    check_key(envelope.group or "")


def _either(request: Request, own: dict[str, str], name: str) -> str | None:
    """What a header says, or the parameter of its name; not both."""
    parameter = request.query(name.removeprefix("waystation-"))
    if parameter is not None and name in own:
        raise InvalidInputError(f"{name} is there twice.", field=name)
    return own.get(name) if parameter is None else parameter


def _wait_seconds(text: str | None) -> float | None:
    if text is None:
        return None
    seconds = parse_duration(text)
    if seconds is None or seconds < 0:
        raise InvalidInputError(f"{_WAIT} is no duration, such as 15s.", field=_WAIT)
    return seconds


def _answer_id(project: str, pool: str, message_id: str) -> str:
    told = f"{project}.{pool}.{message_id}"
    return f"a-{hashlib.sha256(told.encode()).hexdigest()[:40]}"


def _too_many_messages() -> TooLargeError:
    return TooLargeError(f"A batch has at most {BATCH_MAX} messages.", field="messages")
