"""Requests of producers in every format, read as the server reads them."""

from __future__ import annotations

import pytest

from waystation.errors import WaystationError
from waystation.messages.envelope import MESSAGE_BYTES_MAX, Envelope
from waystation.messages.formats import ReceivedMessages, read_request
from waystation.runtime.ids import CountingIds, SequentialIds
from waystation.topics.model import StorageTopicDefinition, TopicDefinition
from waystation.types.topic import TopicOptions

#: Headers that HTTP clients send with every request.
USUAL_HEADERS = (
    (b"host", b"localhost"),
    (b"accept", b"*/*"),
    (b"authorization", b"Bearer ws_secret"),
)
#: The first id that `SequentialIds` creates from `CountingIds`.
FIRST_ID = "0" * 19 + "1" + "0" * 11 + "1"


def topic(*, grouped: bool = False) -> TopicDefinition:
    return TopicDefinition(
        project="shop",
        name="orders",
        version=1,
        options=TopicOptions(grouped=grouped),
        storage=(StorageTopicDefinition(number=0, partitions=4),),
    )


def receive(
    body: bytes, *headers: tuple[bytes, bytes], kind: bytes = b"", grouped: bool = False
) -> ReceivedMessages:
    """Read a request with content type `kind`."""
    content_type = [(b"content-type", kind)] if kind else []
    return read_request(
        topic(grouped=grouped),
        (*USUAL_HEADERS, *headers, *content_type),
        body,
        ids=SequentialIds(CountingIds()),
        bytes_max=MESSAGE_BYTES_MAX,
    )


def receive_one(
    body: bytes, *headers: tuple[bytes, bytes], kind: bytes = b"", grouped: bool = False
) -> Envelope:
    """Read a request that is not a batch and return its message."""
    received = receive(body, *headers, kind=kind, grouped=grouped)
    assert not received.batch
    (envelope,) = received.envelopes
    return envelope


def rejection(
    body: bytes, *headers: tuple[bytes, bytes], kind: bytes = b"", grouped: bool = False
) -> tuple[str, str]:
    """Return code and field of the error that the request raises."""
    with pytest.raises(WaystationError) as raised:
        receive(body, *headers, kind=kind, grouped=grouped)
    assert " " in raised.value.message
    return raised.value.code, getattr(raised.value, "field", "")
