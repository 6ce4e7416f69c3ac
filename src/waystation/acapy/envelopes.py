"""What came to the relay, as a message of a pool; and what an agent answered.

The envelope's bytes are kept as they came. Beside them a message has headers: its content type, the
door that it came through, and, where an answer is wanted, the id to answer to.
"""

from __future__ import annotations

import base64
import binascii
from typing import Literal

import msgspec

from waystation.errors import EnvelopeInvalidError
from waystation.messages.envelope import Envelope
from waystation.pools.answers import ANSWER_TO

Transport = Literal["http", "ws"]

#: The door that a message came through, as the plugin tells it to agents.
TRANSPORT = "waystation-transport"
#: What an agent sends unless it says otherwise.
WIRE = "application/ssi-agent-wire"


def envelope_of(
    body: bytes,
    *,
    message_id: str,
    project: str,
    key: str,
    transport: Transport,
    content_type: str,
    answer_to: str,
) -> Envelope:
    """The message of a pool for what came through a door."""
    headers = [("content-type", content_type), (TRANSPORT, transport)]
    if answer_to:
        headers.append((ANSWER_TO, answer_to))
    return Envelope(id=message_id, project=project, data=body, group=key, headers=tuple(headers))


def inbound_of(envelope: Envelope, number: int, *, can_answer: bool) -> bytes:
    """Return the message as the plugin's relay writes it into the list of a recipient key.

    The number, which agents ignore, comes first so that `mirror_look` finds it. Agents that cannot
    answer get no `txn_id`, because the plugin would wait for its response forever.
    """
    headers = dict(envelope.headers)
    payload = base64.urlsafe_b64encode(envelope.data).decode()
    written: dict[str, str | int] = {"waystation": number, "payload": payload}
    written["transport_type"] = headers.get(TRANSPORT, "http")
    if can_answer and (answer_to := headers.get(ANSWER_TO)):
        written["txn_id"] = answer_to
    return msgspec.json.encode(written)


class DirectResponse(msgspec.Struct, frozen=True):
    """What an agent answered to a message that asked for it."""

    answer_to: str
    content_type: str
    data: bytes


class _ResponseData(msgspec.Struct, frozen=True):
    response: str | None = None
    dashed: str | None = msgspec.field(default=None, name="content-type")
    content_type: str | None = None


class _Written(msgspec.Struct, frozen=True):
    txn_id: str
    response_data: _ResponseData | None = None


_read = msgspec.json.Decoder(_Written).decode


def read_direct_response(raw: bytes) -> DirectResponse:
    """The answer in what an agent wrote; both spellings of the content type are known."""
    try:
        written = _read(raw)
        found = written.response_data or _ResponseData()
        data = base64.b64decode(found.response or "", altchars=b"-_", validate=True)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, binascii.Error) as error:
        raise EnvelopeInvalidError("This is no direct response.", field="response") from error
    content_type = found.dashed or found.content_type or WIRE
    return DirectResponse(written.txn_id, content_type, data)
