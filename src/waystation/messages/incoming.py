"""Turns a request's headers and body into messages, whichever form they come in.

A body is one message, bytes as they are; or a CloudEvent, in binary or structured mode; or a batch
of either kind. All of a request is accepted or nothing: the first thing that is wrong is an error
that says where it is, with the position of the message in a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from waystation.errors import InvalidInputError
from waystation.messages.batches import read_batch
from waystation.messages.cloudevents import attribute_text, read_event, read_events, require_event
from waystation.messages.envelope import Envelope
from waystation.messages.media_types import form_of
from waystation.messages.message_rules import (
    HEADER_NAME_MAX,
    MESSAGE_BYTES_MAX,
    MessageTarget,
    check_header_value,
    check_key,
    check_size,
    is_kept,
    make_envelope,
    read_moment,
    read_traceparent,
)
from waystation.runtime.ids import Identity, SequentialIdentity

#: As a server hands them over: names in lower case.
RawHeaders = Sequence[tuple[bytes, bytes]]

_ID = "waystation-id"
_GROUP = "waystation-group"
_NOT_BEFORE = "waystation-not-before"
_CAUSE = "waystation-cause"
_TRACE = "traceparent"
_KEYS = frozenset({_ID, _GROUP, _CAUSE})
_OWN = _KEYS | {_NOT_BEFORE, _TRACE}
_OWN_PREFIX = "waystation-"


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """What came with one request."""

    envelopes: list[Envelope]
    #: Whether the client sent a batch, be it of one message, and expects a list of receipts.
    batch: bool
    #: Bytes of all messages together, as limits count them.
    size: int


class _Head:
    """What a request's headers say about its message."""

    __slots__ = ("content_type", "kept", "own")

    def __init__(self, headers: RawHeaders) -> None:
        self.own: dict[str, str] = {}
        self.kept: list[tuple[str, str]] = []
        self.content_type = ""
        for raw_name, raw_value in headers:
            # Long names are judged anew each time: what is remembered of names is small.
            judge = _used_name if len(raw_name) <= HEADER_NAME_MAX else _judged
            name = judge(raw_name)
            if name is None:
                continue
            try:
                value = raw_value.decode()
            except UnicodeDecodeError as error:
                raise InvalidInputError(f"{name} is not UTF-8.", field=name) from error
            if name in _OWN:
                if name in self.own:
                    raise InvalidInputError(f"{name} is there more than once.", field=name)
                check = check_key if name in _KEYS else check_header_value
                self.own[name] = check(value, field=name)
                continue
            if name == "content-type":
                if self.content_type:
                    raise InvalidInputError(f"{name} is there more than once.", field=name)
                self.content_type = value
            self.kept.append((name, check_header_value(value, field=name)))


class Incoming:
    """Reads requests."""

    def __init__(self, identity: Identity, *, bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        self._identity = SequentialIdentity(identity)
        self._bytes_max = bytes_max

    def read(self, target: MessageTarget, headers: RawHeaders, body: bytes) -> Received:
        """The messages of a request to produce to a topic."""
        head = _Head(headers)
        form = form_of(head.content_type)
        if form == "message":
            return self._single(self._message(target, head, body))
        if form == "event":
            return self._single(self._event(target, head, body))
        for name in head.own:
            if name != _TRACE:
                raise InvalidInputError(
                    f"{name} is for a single message; in a batch each has its own.", field=name
                )
        trace = read_traceparent(head.own.get(_TRACE))
        read = read_batch if form == "batch" else read_events
        envelopes, size = read(
            target, self._identity, body, traceparent=trace, bytes_max=self._bytes_max
        )
        return Received(envelopes=envelopes, batch=True, size=size)

    def _single(self, envelope: Envelope) -> Received:
        size = check_size(envelope, self._bytes_max)
        return Received(envelopes=[envelope], batch=False, size=size)

    def _message(self, target: MessageTarget, head: _Head, body: bytes) -> Envelope:
        own, kept = head.own, head.kept
        event = dict(kept)
        message_id, group, trace = own.get(_ID), own.get(_GROUP), own.get(_TRACE)
        if "ce-specversion" in event:
            require_event(kept)
            if message_id is None:
                message_id = attribute_text(event["ce-id"], field="ce-id")
            if group is None and "ce-partitionkey" in event:
                group = attribute_text(event["ce-partitionkey"], field="ce-partitionkey")
            trace = read_traceparent(event.get("ce-traceparent")) or trace
        return make_envelope(
            target,
            self._identity,
            data=body,
            id=message_id,
            group=group,
            headers=tuple(kept),
            not_before_ms=_moment(head),
            cause=own.get(_CAUSE),
            traceparent=read_traceparent(trace),
        )

    def _event(self, target: MessageTarget, head: _Head, body: bytes) -> Envelope:
        own = head.own
        return read_event(
            target,
            self._identity,
            body,
            id=own.get(_ID),
            group=own.get(_GROUP),
            # The event is in the body: of the request, only what belongs to neither is kept.
            headers=[each for each in head.kept if each[0].startswith("x-")],
            not_before_ms=_moment(head),
            cause=own.get(_CAUSE),
            traceparent=read_traceparent(own.get(_TRACE)),
        )


def _moment(head: _Head) -> int:
    text = head.own.get(_NOT_BEFORE)
    return 0 if text is None else read_moment(text, field=_NOT_BEFORE)


def _judged(raw: bytes) -> str | None:
    """The name of a header that matters; None for all others."""
    name = raw.decode("latin-1")
    if name in _OWN:
        return name
    if name.startswith(_OWN_PREFIX):
        raise InvalidInputError(
            f"There is no header {name[:80]}.", field=name[:80], hint=f"There are {_OWN_NAMES}."
        )
    if not is_kept(name):
        return None
    if len(name) > HEADER_NAME_MAX:
        raise InvalidInputError(f"The header name {name[:40]}… is too long.", field=name[:40])
    return name


_used_name = lru_cache(maxsize=1024)(_judged)

_OWN_NAMES = ", ".join(sorted(_OWN - {_TRACE}))
