"""A message as JSON that people and programs can look at; a batch of such can be sent in again."""

from __future__ import annotations

from base64 import b64encode

from waystation.messages.envelope import Envelope
from waystation.messages.media_types import content_type_of, is_json_type
from waystation.messages.payloads import json_payload, text_payload


def as_shown(envelope: Envelope) -> dict[str, object]:
    """The fields of a message; those that it does not have are left out.

    The payload is `data` if its content type says that it is JSON and it is, else `text`, else
    `base64`.
    """
    content_type = content_type_of(envelope.headers)
    shown: dict[str, object] = {"id": envelope.id}
    if envelope.group is not None:
        shown["group"] = envelope.group
    # What is encoded is not JSON, even if it looks like it: it must come back byte for byte.
    encoded = any(name == "content-encoding" for name, _ in envelope.headers)
    is_json = content_type and is_json_type(content_type) and not encoded
    data = json_payload(envelope.data) if is_json else None
    if data is not None:
        shown["data"] = data
    elif (text := text_payload(envelope.data)) is not None:
        shown["text"] = text
    else:
        shown["base64"] = b64encode(envelope.data).decode()
    if content_type or "text" in shown:
        # Said even if there is none: in a batch, text has one unless told otherwise.
        shown["content_type"] = content_type or ""
    headers = [each for each in envelope.headers if each[0] != "content-type"]
    if headers:
        shown["headers"] = headers
    if envelope.not_before_ms:
        shown["not_before_ms"] = envelope.not_before_ms
    if envelope.cause is not None:
        shown["cause"] = envelope.cause
    if envelope.traceparent is not None:
        shown["traceparent"] = envelope.traceparent
    return shown
