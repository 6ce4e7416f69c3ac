"""DSPS's routes for administrators: `/admin/jwt/revoke` and `/admin/log/level`.

They answer in networks of one's own, to whoever shows a bearer of `admin.bearer` or an admin key of
project `default`. There is no bearer by default, and none is made up and printed: a secret does
not belong into a log. A station that asks for no keys is no exception: there only a bearer counts.
"""

from __future__ import annotations

import hmac
import re

from waystation.access import Gate, Scope
from waystation.api import channel_schemas as schemas
from waystation.api.client_address import ClientAddresses, Networks
from waystation.api.problems import dsps_error
from waystation.api.reply import Reply, json_reply
from waystation.api.request import Request
from waystation.api.routes import Route
from waystation.channels.tokens import EXPIRY_MAX, RevocationList
from waystation.config import AdminConfig
from waystation.errors import UnauthenticatedError
from waystation.runtime.logging import LEVELS, logger, set_level, set_level_of_all, sources
from waystation.store.keys import DEFAULT_PROJECT

_log = logger("admin")

#: What DSPS calls the parts that write log lines → what they are called here.
CATEGORIES: dict[str, tuple[str, ...]] = {
    "auth": ("access", "tokens"),
    "http": ("http",),
    "logger": (),
    "server": ("node", "station"),
    "storage": ("channels", "embedded", "leases", "pubsub", "store"),
    "tracing": (),
    "webhook-out": ("delivery",),
}
_BEARER = b"Bearer "
_is_integer = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII).fullmatch


class AdminDoor:
    """Who is an administrator."""

    def __init__(self, settings: AdminConfig, gate: Gate, addresses: ClientAddresses) -> None:
        self._bearers = [_BEARER + each.encode() for each in settings.bearer]
        self._networks = Networks(settings.networks, setting="admin.networks")
        self._gate = gate
        self._addresses = addresses

    async def opens(self, request: Request) -> bool:
        """Whether a request comes from where it may, with what it must."""
        address = self._addresses.of(request)
        header = request.authorization
        if address is None or address not in self._networks or header is None:
            return False
        # All of them are compared, each in constant time, so that nothing is told to a guesser.
        if sum(hmac.compare_digest(header, each) for each in self._bearers):
            return True
        return not self._gate.insecure and await self._is_admin_key(header)

    async def _is_admin_key(self, header: bytes) -> bool:
        try:
            access = self._gate.admit(header) or await self._gate.admit_unknown(header)
        except UnauthenticatedError:
            return False
        return Scope.ADMIN in access.scopes and access.project == DEFAULT_PROJECT


class AdminRoutes:
    """Handlers of `/admin/…`."""

    def __init__(
        self, door: AdminDoor, revocation: RevocationList, *, skew_seconds_max: float
    ) -> None:
        self._door = door
        self._revocation = revocation
        self._skew_seconds_max = skew_seconds_max

    async def revoke(self, request: Request) -> Reply:
        """PUT /admin/jwt/revoke?jti=&exp="""
        if not await self._door.opens(request):
            return dsps_error(403, "")
        token_id, text = request.query("jti"), request.query("exp") or ""
        if not token_id:
            return dsps_error(400, 'Missing "jti" parameter')
        if not _is_integer(text) or abs(int(text)) > EXPIRY_MAX:
            return dsps_error(400, 'Invalid "exp" parameter')
        # A token is good for as long as the most patient rule says, so its mark must be too.
        expires_s = min(int(text) + round(self._skew_seconds_max), EXPIRY_MAX)
        await self._revocation.revoke(token_id, expires_s)
        _log.info("a token was revoked")
        return json_reply({"jti": token_id, "exp": expires_s})

    async def log_level(self, request: Request) -> Reply:
        """PUT /admin/log/level?category=&level="""
        if not await self._door.opens(request):
            return dsps_error(403, "")
        category = request.query("category")
        level = LEVELS.get((request.query("level") or "").lower())
        if not category:
            return dsps_error(400, 'Missing "category" parameter')
        if level is None:
            return dsps_error(400, 'Invalid "level" parameter')
        if category == "*":
            set_level_of_all(level)
        elif category in CATEGORIES or category in sources():
            set_level(level, CATEGORIES.get(category, (category,)))
        else:
            return dsps_error(400, 'Invalid "category" parameter')
        _log.info("the level of log lines was set", category=category, set_to=level.lower())
        return Reply(204)

    def routes(self) -> list[Route]:
        """The two rows of the route table."""
        common = {
            400: ("A parameter is missing or malformed.", "application/json", schemas.ERROR),
            403: ("Not from here, or not with this.", "application/json", schemas.ERROR),
            503: schemas.COMMON[503],
        }
        return [
            Route(
                method="PUT",
                path="/admin/jwt/revoke",
                handler=self.revoke,
                scope=None,
                locked=True,
                manner="dsps",
                tag="admin",
                summary="Revoke a token",
                description="It opens no channel any more, on any station, within five seconds.",
                parameters=(
                    schemas.parameter("jti", "Its id.", "query", {"type": "string"}),
                    schemas.parameter(
                        "exp", "When it expires, in seconds.", "query", {"type": "integer"}
                    ),
                ),
                responses={
                    200: ("Revoked, or expired anyway.", "application/json", schemas.REVOKED),
                    507: ("The store is full.", "application/json", schemas.ERROR),
                    **common,
                },
            ),
            Route(
                method="PUT",
                path="/admin/log/level",
                handler=self.log_level,
                scope=None,
                locked=True,
                manner="dsps",
                tag="admin",
                summary="Set what is logged, until the restart of this process",
                parameters=(
                    schemas.parameter(
                        "category",
                        "One of DSPS's, one of ours, or `*`.",
                        "query",
                        {"type": "string"},
                    ),
                    schemas.parameter(
                        "level", "debug, info, warn, error or fatal.", "query", {"type": "string"}
                    ),
                ),
                responses={204: ("Set.", "", {}), **common},
            ),
        ]
