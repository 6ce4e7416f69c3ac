"""Who may open a live stream, and for how long: the checks of channels, by one more way in.

A browser cannot set a header on an EventSource or a WebSocket. On these routes, and nowhere else, a
key or token may come as `?access_token=`, or as a WebSocket subprotocol `bearer.<token>` offered
beside `waystation`. It is taken out of the request before anything could log it.
"""

from __future__ import annotations

from waystation.access import Access, Gate, Scope
from waystation.api.channel_admission import ChannelAdmission
from waystation.api.cors import Cors
from waystation.api.reply import Reply
from waystation.api.request import Request
from waystation.channels.service import ChannelService
from waystation.errors import (
    ForbiddenError,
    InvalidInputError,
    UnauthenticatedError,
)
from waystation.runtime.ids import require_name

#: What a client offers, and what the server answers with; a credential is never answered.
SUBPROTOCOL = "waystation"
_BEARER_PROTOCOL = "bearer."
_IN_QUERY = "access_token"


class StreamAdmission:
    """The checks before a stream, and those while it runs."""

    def __init__(
        self, channels: ChannelService, admission: ChannelAdmission, gate: Gate, cors: Cors
    ) -> None:
        self._channels = channels
        self._admission = admission
        self._gate = gate
        self._cors = cors

    def check_names(self, request: Request) -> Reply | None:
        """Comes before the key. Takes the credential to where a header would have put it."""
        self._take_credential(request)
        channel, subscriber = request.params
        require_name(channel, field="channel")
        require_name(subscriber, field="subscriber")
        self._channels.terms_of(channel)
        return None

    async def admit(self, request: Request) -> Access | None:
        """The access that a token gives; None when a key is asked for."""
        is_socket = request.scope["type"] == "websocket"
        if is_socket and not self._cors.allows_socket(request.host, request.origin):
            raise ForbiddenError("Pages of this origin may not use the station.")
        coming = self._admission.admit(request)
        return None if coming is None else await coming

    async def recheck(self, request: Request) -> None:
        """Raises when the credential of a running stream has ended."""
        if await self.admit(request) or self._gate.admit(request.authorization):
            return
        if self._gate.fresh:
            raise UnauthenticatedError("The key is not valid any more.")
        await self._gate.admit_unknown(request.authorization)

    @staticmethod
    def _take_credential(request: Request) -> None:
        shown = [*_from_query(request), *_from_protocols(request)]
        if not shown:
            return
        if len(shown) > 1 or request.authorization is not None:
            raise InvalidInputError("Show one key or token, in one place.", field=_IN_QUERY)
        request.authorization = b"Bearer " + shown[0].encode("latin-1", "replace")


def require_write(access: Access, what: str) -> None:
    """Raises unless the access covers a write."""
    if Scope.WRITE not in access.scopes:
        raise ForbiddenError(f"{what} needs a key with the scope 'write'.")


def _from_query(request: Request) -> list[str]:
    """Takes the token out of the query, so that no log line can have it."""
    token = request.query(_IN_QUERY)
    if token is None:
        return []
    pairs = request.scope["query_string"].split(b"&")
    kept = [pair for pair in pairs if pair.partition(b"=")[0] != _IN_QUERY.encode()]
    request.scope["query_string"] = b"&".join(kept)
    return [token]


def _from_protocols(request: Request) -> list[str]:
    offered: list[str] = request.scope.get("subprotocols", [])
    return [
        each.removeprefix(_BEARER_PROTOCOL) for each in offered if each.startswith(_BEARER_PROTOCOL)
    ]
