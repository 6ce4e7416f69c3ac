"""The status door: whether a process is alive, and whether it can do its work.

As the plugin has it: `GET /status/live` and `GET /status/ready`, with the API key in the header
`access_token`, else 403.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable

from waystation.api.reply import Reply, json_reply
from waystation.api.request import Request
from waystation.errors import WaystationError
from waystation.relay.http_app import HttpApp, no_such_method, no_such_path
from waystation.relay.server import DoorPlan
from waystation.store.client import Store

#: A store that has not answered by then does not.
_PING_SECONDS = 2.0
_BODY_BYTES_MAX = 1024

#: Whether something is so.
Question = Callable[[], Awaitable[bool]]


class StatusDoor:
    """Handles the requests of a status door."""

    def __init__(self, api_key: str, *, ready: Question, alive: Question) -> None:
        assert api_key, "a status door has a key"
        self._api_key = api_key.encode()
        self._paths = {"/status/ready": ("ready", ready), "/status/live": ("alive", alive)}

    async def handle(self, request: Request) -> Reply:
        """Every request."""
        found = self._paths.get(request.scope["path"])
        if found is None:
            return no_such_path(request)
        if request.scope["method"] not in ("GET", "HEAD"):
            return no_such_method(request, "GET")
        given = dict(request.scope["headers"]).get(b"access_token", b"")
        if not hmac.compare_digest(given, self._api_key):
            return json_reply({"detail": "Could not validate key"}, 403)
        name, question = found
        return json_reply({name: await question()})


def status_plan(
    api_key: str, store: Store, host: str, port: int, *, working: Callable[[], bool] = lambda: True
) -> DoorPlan:
    """A status door: alive while the store answers, ready while the process works too."""

    async def alive() -> bool:
        return await answers(store)

    async def ready() -> bool:
        return working() and await answers(store)

    door = StatusDoor(api_key, ready=ready, alive=alive)
    return DoorPlan(HttpApp("status", door.handle, body_bytes_max=_BODY_BYTES_MAX), host, port)


async def answers(store: Store) -> bool:
    """Whether a store answers."""
    try:
        async with asyncio.timeout(_PING_SECONDS):
            await store.ping()
    except (TimeoutError, WaystationError):
        return False
    return True
