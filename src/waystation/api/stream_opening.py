"""What both kinds of live streams share: their address, their parameters, their patience."""

from __future__ import annotations

from waystation.access import Access
from waystation.api import channel_schemas as schemas
from waystation.api.request import Request
from waystation.api.routes import Parameter
from waystation.api.stream_admission import require_write
from waystation.channels.service import ChannelService
from waystation.errors import (
    InvalidInputError,
    OutcomeUnknownError,
    StoreFullError,
    StoreUnavailableError,
)

PATH = "/v1/channels/{channel}/subscribers/{subscriber}"
#: A stream that is open outlives these: it looks again after a while.
STORE_AWAY = (OutcomeUnknownError, StoreFullError, StoreUnavailableError)
AWAY_SECONDS = 1.0

PARAMETERS: tuple[Parameter, ...] = (
    schemas.parameter("channel", "Name of the channel."),
    schemas.parameter("subscriber", "Name of the subscriber."),
    schemas.parameter(
        "create",
        "Whether to create the subscriber if it is missing.",
        "query",
        {"type": "string", "enum": ["true", "false"], "default": "false"},
    ),
    schemas.parameter(
        "access_token",
        "A key or token, for browsers, which cannot send the header `Authorization` here.",
        "query",
        {"type": "string"},
    ),
)
_SCHEMA: dict[str, object] = {"$ref": "#/components/schemas/Problem"}
_PROBLEM = ("application/problem+json", _SCHEMA)
REFUSALS: dict[int, tuple[str, str, dict[str, object]]] = {
    400: ("A name or a parameter is malformed.", *_PROBLEM),
    404: ("There is no such subscriber.", *_PROBLEM),
    503: ("Not now. Try again.", *_PROBLEM),
    507: ("The store is full.", *_PROBLEM),
}


async def create_if_asked(
    request: Request, channels: ChannelService, *, after: int | None = None
) -> Access:
    """Creates the subscriber when `create=true` says so; a known place is kept."""
    access = request.access
    assert access is not None
    wanted = request.query("create") or "false"
    if wanted not in ("true", "false"):
        raise InvalidInputError("create must be true or false.", field="create")
    if wanted == "true":
        require_write(access, "Creating a subscriber")
        channel, subscriber = request.params
        await channels.subscribe(access.project, channel, subscriber, after=after)
    return access
