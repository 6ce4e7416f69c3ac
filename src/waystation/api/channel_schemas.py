"""Pieces of the OpenAPI document that the channel routes share."""

from __future__ import annotations

from typing import Literal

from waystation.api.routes import Parameter
from waystation.runtime.ids import NAME_PATTERN

NAME: dict[str, object] = {"type": "string", "pattern": NAME_PATTERN}


def parameter(
    name: str,
    description: str,
    place: Literal["path", "query"] = "path",
    schema: dict[str, object] | None = None,
) -> Parameter:
    """A parameter; in a path it is a name."""
    return Parameter(name=name, place=place, description=description, schema=schema or NAME)


def _object(required: list[str], **properties: object) -> dict[str, object]:
    return {"type": "object", "required": required, "properties": properties}


CHANNEL = parameter("channelID", "Name of the channel; it need not be created.")
PUBLISHED = _object(["channelID", "messageID"], channelID=NAME, messageID=NAME)
SUBSCRIBER = _object(["channelID", "subscriberID"], channelID=NAME, subscriberID=NAME)
FETCHED = _object(
    ["channelID", "messages", "moreMessages"],
    channelID=NAME,
    messages={
        "type": "array",
        "items": _object(["messageID", "content"], messageID={"type": "string"}, content={}),
    },
    moreMessages={"type": "boolean"},
    ackHandle={"type": "string", "description": "Only with messages."},
    lostMessages={
        "type": "integer",
        "minimum": 1,
        "description": "Messages that expired unread; only when there are any.",
    },
)
REVOKED = _object(["jti", "exp"], jti={"type": "string"}, exp={"type": "integer"})
ERROR = _object(
    ["error"], error={"type": "string"}, code={"type": "string"}, reason={"type": "string"}
)
#: What every channel route can answer.
COMMON: dict[int, tuple[str, str, dict[str, object]]] = {
    400: ("A parameter or the body is malformed.", "application/json", ERROR),
    403: ("No key or token, or one that does not suffice.", "application/json", ERROR),
    503: ("Not now: the store is away. Try again.", "application/json", ERROR),
}
