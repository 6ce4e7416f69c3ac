"""The route table: the dispatcher routes by it, and the OpenAPI document is made from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

from waystation.access import Access, Scope
from waystation.api.reply import Reply
from waystation.api.request import Request

Handler = Callable[[Request], Awaitable[Reply]]
#: Whose manners a route has: error shape, default headers, 404 and 405.
Manner = Literal["dsps", "own"]


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A path or query parameter, for the document."""

    name: str
    place: Literal["path", "query"]
    description: str
    schema: dict[str, object]


@dataclass(frozen=True, kw_only=True)
class Route:
    """One method on one path template, such as `/channel/{channelID}/message/{messageID}`."""

    method: str
    path: str
    handler: Handler
    #: None: open to everyone.
    scope: Scope | None
    manner: Manner
    #: Largest body, where it is another than that of all routes.
    body_bytes_max: int | None = None
    #: Whether the handler asks for credentials of its own.
    locked: bool = False
    #: Whether it is for WebSockets, and the upgrade is granted by a `SocketReply`.
    socket: bool = False
    #: Looked at before the key; a reply from it ends the request.
    precheck: Callable[[Request], Reply | None] | None = None
    #: Another way in than a key. None asks for a key at once, without a wait; else it is waited
    #: for: an access, None to ask for a key, or an error.
    admission: Callable[[Request], Awaitable[Access | None] | None] | None = None
    summary: str
    description: str = ""
    tag: str = ""
    #: Used in DSPS's error texts.
    verb: str = ""
    parameters: tuple[Parameter, ...] = ()
    request_body: dict[str, object] | None = None
    #: Status → (description, media type, schema).
    responses: dict[int, tuple[str, str, dict[str, object]]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Label in metrics and id of the operation."""
        return f"{self.method} {self.path}"


class RouteTable:
    """Finds routes by path. Segments in braces match any non-empty segment."""

    def __init__(self, routes: list[Route]) -> None:
        self.routes = routes
        self._root: _Node = _Node()
        for route in routes:
            node = self._root
            for segment in route.path.split("/")[1:]:
                if segment.startswith("{"):
                    node.any = node.any or _Node()
                    node = node.any
                else:
                    node = node.fixed.setdefault(segment, _Node())
            assert route.method not in node.routes, f"two routes for {route.name}"
            node.routes[route.method] = route

    def find(self, path: str) -> tuple[dict[str, Route], list[str]] | None:
        """Routes of a path by method, and the parameters in it; None for an unknown path."""
        node = self._root
        params: list[str] = []
        for segment in path.split("/")[1:]:
            following = node.fixed.get(segment)
            if following is None:
                following = node.any
                if following is None or not segment:
                    return None
                params.append(segment)
            node = following
        return (node.routes, params) if node.routes else None


class _Node:
    __slots__ = ("any", "fixed", "routes")

    def __init__(self) -> None:
        self.fixed: dict[str, _Node] = {}
        self.any: _Node | None = None
        self.routes: dict[str, Route] = {}
