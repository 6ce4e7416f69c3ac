"""Who may use a channel: its name must be allowed, and its tokens, if it has any, must be shown.

An API key opens every channel of its project; rules about tokens are for those who have none, such
as pages in a browser. A token opens channels of project `default`, for reading and writing. A
revoked token is refused wherever it is shown. On a station that asks for no keys, nothing but a
token opens a channel that asks for tokens.
"""

from __future__ import annotations

from collections.abc import Awaitable

from waystation.access import Access, Scope
from waystation.api.problems import dsps_error
from waystation.api.reply import Reply
from waystation.api.request import Request
from waystation.channels.service import ChannelService
from waystation.channels.tokens import RevocationList, TokenVerifier, read_token
from waystation.config import TokenRule
from waystation.errors import InvalidChannelError, TokenRejectedError, UnauthenticatedError
from waystation.runtime.clock import Clock
from waystation.runtime.ids import is_name
from waystation.store.keys import DEFAULT_PROJECT

_BEARER = b"Bearer "
#: What looks like a key is left to the gate; no token begins so, since it begins with JSON.
_KEY = b"Bearer ws_"
_BY_TOKEN = Access(DEFAULT_PROJECT, Scope.WRITE.included())


class ChannelAdmission:
    """The checks that come before a handler of `/channel/…`."""

    def __init__(
        self,
        channels: ChannelService,
        verifier: TokenVerifier,
        revocation: RevocationList,
        clock: Clock,
        *,
        keys_needed: bool,
        disclose: bool,
    ) -> None:
        self._channels = channels
        self._verifier = verifier
        self._revocation = revocation
        self._clock = clock
        self._keys_needed = keys_needed
        self._disclose = disclose

    def check_channel(self, request: Request) -> Reply | None:
        """The check that comes before the key, as in DSPS; None when all is well."""
        channel = request.params[0]
        if not is_name(channel):
            return dsps_error(400, 'Invalid "channelID" parameter')
        if self._channels.rules.terms_of(channel) is None:
            return dsps_error(400, 'Invalid "channelID" parameter', InvalidChannelError.code)
        return None

    def admit(self, request: Request) -> Awaitable[Access | None] | None:
        """The access that a token gives; None, at once or awaited, leaves it to the gate.

        Every request comes by here: nothing is made that has to be awaited unless a token matters.
        Who keeps a client waiting calls it again before the answer, as a token may have expired or
        been revoked meanwhile.
        """
        header = request.authorization
        rules = self._channels.terms_of(request.params[0]).tokens
        if header is None:
            return self._admit_token(rules, header) if rules else None
        if header.startswith(_KEY) and (self._keys_needed or not rules):
            return None
        return self._admit_token(rules, header)

    async def guard(self, channel: str, header: bytes | None) -> None:
        """For routes that take keys alone: where none is needed they are no way around tokens."""
        terms = self._channels.rules.terms_of(channel)
        if terms is not None and terms.tokens and not self._keys_needed:
            await self._admit_token(terms.tokens, header)

    async def _admit_token(
        self, rules: tuple[TokenRule, ...], header: bytes | None
    ) -> Access | None:
        token = read_token(_bearer_token(header))
        try:
            if rules and token is None:
                raise UnauthenticatedError("A token is needed: 'Authorization: Bearer <token>'.")
            if token is not None:
                self._verifier.verify(token, rules, now_ms=self._clock.now_ms())
                if token.id and await self._revocation.is_revoked(token.id):
                    raise UnauthenticatedError("The token was revoked.")
        except UnauthenticatedError as error:
            raise TokenRejectedError(reason=error.message if self._disclose else "") from error
        return _BY_TOKEN if rules else None


def _bearer_token(header: bytes | None) -> str:
    """What follows `Bearer `, written exactly so as in DSPS; empty when there is nothing."""
    if header is None or not header.startswith(_BEARER):
        return ""
    return header[len(_BEARER) :].decode("latin-1")
