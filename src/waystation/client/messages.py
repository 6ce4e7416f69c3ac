"""What clients get back: messages with their content, and the way from a reply to an error."""

from __future__ import annotations

from typing import Any

import msgspec

from waystation import errors
from waystation.errors import WaystationError


class Received(msgspec.Struct, frozen=True):
    """A message as a subscriber gets it."""

    id: str = msgspec.field(name="messageID")
    #: The content byte for byte as it was published.
    raw: msgspec.Raw = msgspec.field(name="content")

    @property
    def content(self) -> Any:
        """The content, decoded."""
        return msgspec.json.decode(self.raw)


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a fetch; empty when nothing came in time."""

    messages: list[Received]
    #: Whether unread messages lie beyond these.
    more: bool = msgspec.field(name="moreMessages")
    #: Acknowledge with this; empty without messages.
    handle: str = msgspec.field(name="ackHandle", default="")
    #: Messages that expired before they were fetched.
    lost: int = msgspec.field(name="lostMessages", default=0)


class Answer(msgspec.Struct, frozen=True):
    """An HTTP reply, whichever library brought it."""

    status: int
    body: bytes


_decode_batch = msgspec.json.Decoder(Batch).decode


def decode_batch(answer: Answer) -> Batch:
    """Reads the reply of a fetch."""
    try:
        return _decode_batch(answer.body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise errors.StationUnreachableError("What answered is not a station.") from error


def encode_content(content: Any) -> bytes:
    """JSON for a message; `msgspec.Raw` and bytes are taken as JSON already."""
    if isinstance(content, bytes):
        return content
    return msgspec.json.encode(content)


def raise_for(answer: Answer) -> None:
    """Raises the error that a reply tells of, as the class that has its code."""
    if answer.status < 400:
        return
    try:
        told = msgspec.json.decode(answer.body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        told = {}
    code = str(told.get("code", ""))
    text = str(told.get("detail") or told.get("error") or f"The station answered {answer.status}.")
    kind = _by_code().get(code) or _by_status(answer.status)
    error = kind(text)
    error.code = code or kind.code
    raise error


def _by_status(status: int) -> type[WaystationError]:
    if status in (401, 403):
        return errors.UnauthenticatedError
    if status == 404:
        return errors.NotFoundError
    # A proxy's 502 or 504, or a station that broke down: nobody knows what became of the request.
    return errors.StationUnreachableError if status >= 500 else errors.InvalidInputError


def _by_code() -> dict[str, type[WaystationError]]:
    found: dict[str, type[WaystationError]] = {"dsps.auth.rejected": errors.UnauthenticatedError}
    kinds = [WaystationError]
    while kinds:
        kind = kinds.pop()
        found.setdefault(kind.code, kind)
        kinds += kind.__subclasses__()
    return found
