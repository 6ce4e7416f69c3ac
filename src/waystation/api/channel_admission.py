"""Who may use a channel: its name must be allowed, and its tokens, if it has any, must be shown.

An API key opens every channel of its project; rules about tokens are for those who have none, such
as pages in a browser. A token opens one channel of project `default`, for reading and writing. A
revoked token is refused wherever it is shown.
"""

from __future__ import annotations

from waystation.access import Access, Scope
from waystation.access.keys import split_key
from waystation.api.problems import dsps_error
from waystation.api.reply import Reply
from waystation.api.request import Request
from waystation.channels import Channels
from waystation.channels.revocation import Revocation
from waystation.channels.tokens import TokenVerifier, token_id
from waystation.clock import Clock
from waystation.errors import InvalidChannelError, UnauthenticatedError
from waystation.ids import is_name
from waystation.store.keys import DEFAULT_PROJECT

_BEARER = b"Bearer "
_BY_TOKEN = Access(DEFAULT_PROJECT, Scope.WRITE.included())


class ChannelAdmission:
    """The checks that come before a handler of `/channel/…`."""

    def __init__(
        self, channels: Channels, verifier: TokenVerifier, revocation: Revocation, clock: Clock
    ) -> None:
        self._channels = channels
        self._verifier = verifier
        self._revocation = revocation
        self._clock = clock

    def check_channel(self, request: Request) -> Reply | None:
        """The check that comes before the key, as in DSPS; None when all is well."""
        channel = request.params[0]
        if not is_name(channel):
            return dsps_error(400, 'Invalid "channelID" parameter')
        if self._channels.rules.terms(channel) is None:
            return dsps_error(400, 'Invalid "channelID" parameter', InvalidChannelError.code)
        return None

    async def admit(self, request: Request) -> Access | None:
        """The access that a token gives; None when the channel asks for a key, not for a token."""
        rules = self._channels.terms(request.params[0]).tokens
        header = request.authorization
        if header is None and not rules:
            return None
        shown = _bearer_token(header)
        if split_key(shown) is not None:
            return None
        if shown and (found := token_id(shown)) and await self._revocation.is_revoked(found):
            raise UnauthenticatedError("The token was revoked.")
        if not rules:
            return None
        self._verifier.verify(shown, rules, now_ms=self._clock.now_ms())
        return _BY_TOKEN


def _bearer_token(header: bytes | None) -> str:
    """What follows `Bearer `, written exactly so as in DSPS; empty when there is nothing."""
    if header is None or not header.startswith(_BEARER):
        return ""
    return header[len(_BEARER) :].decode("latin-1")
