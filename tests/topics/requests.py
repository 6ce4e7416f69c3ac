"""Requests to produce, for tests of every form that they come in."""

from __future__ import annotations

import pytest

from waystation.errors import WaystationError
from waystation.messages.envelope import Envelope
from waystation.messages.incoming import Incoming, Received
from waystation.runtime.ids import CountingIdentity
from waystation.topics.model import StorageTopic, Topic, TopicOptions

#: What clients send without being asked to.
USUAL = ((b"host", b"localhost"), (b"accept", b"*/*"), (b"authorization", b"Bearer ws_secret"))
FIRST_ID = "0" * 19 + "1" + "0" * 11 + "1"


def topic(*, grouped: bool = False) -> Topic:
    return Topic(
        project="shop",
        name="orders",
        version=1,
        options=TopicOptions(grouped=grouped),
        storage=(StorageTopic(number=0, partitions=4),),
    )


def receive(
    body: bytes, *headers: tuple[bytes, bytes], kind: bytes = b"", grouped: bool = False
) -> Received:
    given = (*USUAL, *headers, *([(b"content-type", kind)] if kind else []))
    return Incoming(CountingIdentity()).read(topic(grouped=grouped), given, body)


def receive_one(
    body: bytes, *headers: tuple[bytes, bytes], kind: bytes = b"", grouped: bool = False
) -> Envelope:
    received = receive(body, *headers, kind=kind, grouped=grouped)
    assert not received.batch
    (envelope,) = received.envelopes
    return envelope


def refusal(
    body: bytes, *headers: tuple[bytes, bytes], kind: bytes = b"", grouped: bool = False
) -> tuple[str, str]:
    """Code and field of the error; that it has a sentence is checked on the way."""
    with pytest.raises(WaystationError) as raised:
        receive(body, *headers, kind=kind, grouped=grouped)
    assert " " in raised.value.message
    return raised.value.code, getattr(raised.value, "field", "")
