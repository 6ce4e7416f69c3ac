"""Health: DSPS's probes, and our own `/livez`, `/readyz`, `/metrics`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from waystation.access import Gate, Scope
from waystation.api.reply import Reply, json_reply
from waystation.api.request import Request
from waystation.api.routes import Route
from waystation.catalogue import Catalogue
from waystation.errors import WaystationError
from waystation.store.keys import DEFAULT_PROJECT
from waystation.store.opening import OpenStore
from waystation.telemetry import metrics
from waystation.types.history import HistoryStatus

#: A part that does not answer within this is not ready.
_CHECK_SECONDS_MAX = 2.0

_OPEN: dict[str, object] = {"type": "object"}
_LIVE: dict[str, object] = {"storage": {"children": {"default": {}}}}
_READY = {"storage": {"children": {"default": {"redis": "ping OK"}}}}
#: Fields of the data pipeline that anybody may see.
_HISTORY_FIELDS = ("state", "lag", "last_batch", "rows", "failures")
_UNHEALTHY: dict[str, object] = {"storage": {}}


@dataclass
class Readiness:
    """Looks at everything that this process needs."""

    opened: OpenStore
    catalogue: Catalogue
    gate: Gate
    #: Warnings of the parts of the node, as sentences.
    node_notes: Callable[[], list[str]]
    stopping: Callable[[], bool] = field(default=lambda: False)
    #: Whether this process hears of work; true for one that does none.
    working: Callable[[], bool] = field(default=lambda: True)
    #: Whether this process hears of shards to deliver; true for one that delivers none.
    delivering: Callable[[], bool] = field(default=lambda: True)
    #: Number of endpoints of subscriptions whose breaker is not closed in this process. Their names
    #: are for those who may see the project.
    open_breakers: Callable[[], int] = field(default=lambda: 0)

    #: The same of the receivers of replies.
    open_reply_breakers: Callable[[], int] = field(default=lambda: 0)
    #: Status of the data pipeline; None if this process does not run it.
    history: Callable[[], HistoryStatus | None] = field(default=lambda: None)

    @property
    def notes(self) -> list[str]:
        """What a person should know, although the process is ready."""
        notes = [*self.opened.notes, *self.node_notes()]
        if count := self.open_breakers():
            notes.append(
                f"The circuit breakers of {count} endpoints are open: no requests but probes are"
                " sent to them. `waystation subscription shards NAME` shows the shards, and"
                " `waystation subscription resume NAME` closes the breaker of a repaired endpoint."
            )
        if count := self.open_reply_breakers():
            notes.append(
                f"{count} receivers of replies are paused, because replies to them fail and none"
                " succeeds: no requests but probes are sent to them. `waystation webhooks list"
                " --waiting` shows the replies."
            )
        return notes

    async def problems(self) -> dict[str, str]:
        """What is wrong, by part; empty when the process is ready."""
        found: dict[str, str] = {}
        if self.stopping():
            found["process"] = "it is stopping"
        if problem := await self.store_problem():
            found["store"] = problem
        if problem := await _tried(self.catalogue.ping()):
            found["catalogue"] = problem
        if not self.gate.insecure and not self.gate.fresh:
            found["keys"] = "they could not be read for a while"
        if not self.working():
            found["worker"] = "no claim was answered lately"
        if not self.delivering():
            found["delivery"] = "the store has not told lately who delivers"
        return found

    async def store_problem(self) -> str:
        """Why the store cannot be used; empty when a round trip worked."""
        problem = await _tried(self.opened.store.ping())
        if problem and self.opened.server is not None:
            if self.opened.server.disk_full:
                return "The disk of the embedded store is full. The store starts when it has room."
            return str(self.opened.server.start_error() or problem)
        return problem


async def _tried(check: object) -> str:
    try:
        async with asyncio.timeout(_CHECK_SECONDS_MAX):
            await check  # type: ignore[misc]
    except TimeoutError:
        return "it does not answer"
    except WaystationError as error:
        return str(error)
    return ""


def _public(status: HistoryStatus | None) -> dict[str, object] | None:
    """Return a status without the place of the lake and its errors, which need no key otherwise."""
    if status is None:
        return None
    return {name: getattr(status, name) for name in _HISTORY_FIELDS}


class ProbeRoutes:
    """Handlers of the health routes."""

    def __init__(self, readiness: Readiness, *, metrics_public: bool) -> None:
        self._readiness = readiness
        self._metrics_public = metrics_public

    async def dsps_liveness(self, request: Request) -> Reply:
        """GET /probe/liveness"""
        return json_reply(_LIVE)

    async def dsps_readiness(self, request: Request) -> Reply:
        """GET /probe/readiness"""
        if await self._readiness.problems():
            return json_reply(_UNHEALTHY, 500)
        return json_reply(_READY)

    async def livez(self, request: Request) -> Reply:
        """GET /livez: to answer at all is the proof that the loop turns."""
        return json_reply({"alive": True})

    async def readyz(self, request: Request) -> Reply:
        """GET /readyz"""
        problems = await self._readiness.problems()
        content = {
            "ready": not problems,
            "problems": problems,
            "notes": self._readiness.notes,
            "history": _public(self._readiness.history()),
        }
        return json_reply(content, 503 if problems else 200)

    async def metrics(self, request: Request) -> Reply:
        """GET /metrics"""
        access = request.access
        # Operators have an admin key of the default project; without keys everybody is one.
        is_default = access is None or access.project == DEFAULT_PROJECT
        if access is None or (is_default and Scope.ADMIN in access.scopes):
            text = metrics.exposition()
        else:
            text = metrics.exposition(access.project, owns_bare_names=is_default)
        return Reply(200, text, ((b"content-type", metrics.CONTENT_TYPE.encode()),))

    def routes(self) -> list[Route]:
        """The rows of the route table."""
        storage: dict[str, object] = {
            "type": "object",
            "required": ["storage"],
            "properties": {"storage": _OPEN},
        }
        rows: list[Route] = []
        for path, handler, summary in (
            (
                "/probe/liveness",
                self.dsps_liveness,
                "Whether the process is alive, as DSPS says it",
            ),
            ("/probe/readiness", self.dsps_readiness, "Whether it can serve, as DSPS says it"),
        ):
            rows.append(
                Route(
                    method="GET",
                    path=path,
                    handler=handler,
                    scope=None,
                    manner="dsps",
                    tag="health",
                    summary=summary,
                    responses={
                        200: ("Yes.", "application/json", storage),
                        500: ("No.", "application/json", storage),
                    },
                )
            )
        ready: dict[str, object] = {
            "type": "object",
            "required": ["ready", "problems", "notes", "history"],
            "properties": {
                "ready": {"type": "boolean"},
                "problems": {"type": "object", "additionalProperties": {"type": "string"}},
                "notes": {"type": "array", "items": {"type": "string"}},
                "history": {"type": ["object", "null"]},
            },
        }
        rows += [
            Route(
                method="GET",
                path="/livez",
                handler=self.livez,
                scope=None,
                manner="own",
                tag="health",
                summary="Whether the process is alive",
                responses={200: ("It is.", "application/json", _OPEN)},
            ),
            Route(
                method="GET",
                path="/readyz",
                handler=self.readyz,
                scope=None,
                manner="own",
                tag="health",
                summary="Whether the process can serve, and why not",
                responses={
                    200: ("It can.", "application/json", ready),
                    503: ("It cannot.", "application/json", ready),
                },
            ),
            Route(
                method="GET",
                path="/metrics",
                handler=self.metrics,
                scope=None if self._metrics_public else Scope.READ,
                manner="own",
                tag="health",
                summary="Metrics in OpenMetrics text",
                responses={
                    200: (
                        "All metrics for an admin key of `default`; a project's own for others.",
                        metrics.CONTENT_TYPE.partition(";")[0],
                        {"type": "string"},
                    )
                },
            ),
        ]
        return rows
