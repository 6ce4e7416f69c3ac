"""The hot routes of transactions: start, look, wait, set a switch; and the list beside them.

A start is read whole before anything is started. Of a list each has a result of its own, since
they go to different cells; only when nothing of a request was started, the answer is a problem.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from waystation.access import Scope
from waystation.api import transaction_schemas as schemas
from waystation.api.problems import status_of
from waystation.api.reply import JSON, Reply, encode, json_reply
from waystation.api.request import Request
from waystation.api.routes import Handler, Route
from waystation.durations import parse_duration
from waystation.errors import InvalidInputError, OutcomeUnknownError, WaystationError
from waystation.telemetry.logging import logger
from waystation.transaction_errors import DuplicateTransactionError
from waystation.transactions.engine import Engine
from waystation.transactions.order import read_orders
from waystation.transactions.start import Receipt
from waystation.transactions.starter import Result
from waystation.transactions.states import State
from waystation.transactions.switches import Scalar

_log = logger("http")

#: What a client may be told of an error that nobody foresaw.
_UNFORESEEN = "Something went wrong on our side; the log has it."


class _Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    value: Scalar


_is_number = re.compile(r"[0-9]{1,9}", re.ASCII).fullmatch
_decode_value = msgspec.json.Decoder(_Value).decode


class TransactionRoutes:
    """Handlers of `/v1/transactions`."""

    def __init__(self, engine: Engine, *, wait_seconds_max: float) -> None:
        self._starter = engine.starter
        self._transactions = engine.transactions
        self._listing = engine.listing
        self._wait_seconds_max = wait_seconds_max

    async def start(self, request: Request) -> Reply:
        """POST /v1/transactions"""
        assert request.access is not None
        trace = next((v for k, v in request.scope["headers"] if k == b"traceparent"), b"")
        orders, many = read_orders(await request.body(), traceparent=trace.decode("latin-1"))
        if many:
            results = await self._starter.start_many(request.access.project, orders)
            return json_reply({"results": _told(results)})
        receipt = await self._starter.start(request.access.project, orders[0])
        return json_reply(receipt.summary, 200 if receipt.duplicate else 201)

    async def get(self, request: Request) -> Reply:
        """GET /v1/transactions/{id}?wait=30s"""
        assert request.access is not None
        (transaction_id,) = request.params
        summary = await self._transactions.get(
            request.access.project,
            transaction_id,
            wait_seconds=self._wait(request.query("wait")),
            abandonment=request.abandonment,
        )
        return Reply(200, encode(summary) + b"\n", (JSON,))

    async def list_(self, request: Request) -> Reply:
        """GET /v1/transactions?state=&pipeline=&external_id="""
        assert request.access is not None
        project, external_id = request.access.project, request.query("external_id")
        state, pipeline = _state(request.query("state")), request.query("pipeline") or ""
        limit, cursor = _limit(request.query("limit")), request.query("cursor") or ""
        if external_id is not None:
            if state is not None or pipeline or cursor:
                raise InvalidInputError(
                    "An external id leads to one transaction; nothing else can be asked for.",
                    field="external_id",
                )
            rows = await self._listing.by_external_id(project, external_id)
            return json_reply({"transactions": rows, "cursor": ""})
        rows, following = await self._listing.page(
            project, state=state, pipeline=pipeline, limit=limit, cursor=cursor
        )
        return json_reply({"transactions": rows, "cursor": following})

    async def set_switch(self, request: Request) -> Reply:
        """PUT /v1/transactions/{id}/switches/{name}"""
        try:
            value = _decode_value(await request.body()).value
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidInputError(
                'A switch is set by {"value": …}: true, false, a number or a text.', field="value"
            ) from error
        return await self._switched(request, value)

    async def delete_switch(self, request: Request) -> Reply:
        """DELETE /v1/transactions/{id}/switches/{name}"""
        return await self._switched(request, None)

    async def _switched(self, request: Request, value: Scalar | None) -> Reply:
        assert request.access is not None
        transaction_id, name = request.params
        switched = await self._transactions.set_switch(
            request.access.project, transaction_id, name, value
        )
        return json_reply(switched)

    def _wait(self, text: str | None) -> float:
        if text is None:
            return 0.0
        seconds = parse_duration(text)
        if seconds is None or seconds < 0:
            raise InvalidInputError(
                "wait is not a duration.", field="wait", hint="Write it as 500ms, 30s or 1m."
            )
        return min(seconds, self._wait_seconds_max)

    def routes(self) -> list[Route]:
        """The five rows of the route table."""
        path, one = "/v1/transactions", "/v1/transactions/{id}"
        switch = "/v1/transactions/{id}/switches/{name}"
        return [
            _row("POST", path, self.start, schemas.START),
            _row("GET", path, self.list_, schemas.LIST),
            _row("GET", one, self.get, schemas.GET),
            _row("PUT", switch, self.set_switch, schemas.SET_SWITCH),
            _row("DELETE", switch, self.delete_switch, schemas.DELETE_SWITCH),
        ]


def _row(method: str, path: str, handler: Handler, told: schemas.Told) -> Route:
    return Route(
        method=method,
        path=path,
        handler=handler,
        scope=Scope.READ if method == "GET" else Scope.WRITE,
        manner="own",
        tag="transactions",
        summary=told.summary,
        description=told.description,
        parameters=told.parameters,
        request_body=told.request_body,
        responses=told.responses,
    )


def _told(results: Sequence[Result]) -> list[object]:
    """What became of each order of a list; raises where nothing was started."""
    problems = [each for each in results if isinstance(each, WaystationError)]
    if len(problems) == len(results):
        # Doubt first: a client that is told "full" would send all of it again.
        unknown = (each for each in problems if isinstance(each, OutcomeUnknownError))
        raise next(unknown, problems[0])
    return [each.summary if isinstance(each, Receipt) else _refused(each) for each in results]


def _refused(error: WaystationError) -> dict[str, object]:
    code, detail = error.code, str(error)
    if status_of(error) == 500:
        _log.error("a transaction was not started", error=error)
        code, detail = WaystationError.code, _UNFORESEEN
    told: dict[str, object] = {"code": code, "detail": detail}
    if isinstance(error, DuplicateTransactionError):
        told["existing_id"] = error.existing_id
    return {"error": told}


def _state(text: str | None) -> State | None:
    if not text:
        return None
    try:
        return State(text)
    except ValueError as error:
        raise InvalidInputError(
            f"There is no state {text[:40]!r}.",
            field="state",
            hint=f"There are {', '.join(State)}.",
        ) from error


def _limit(text: str | None) -> int:
    if text is None:
        return schemas.LIMIT_DEFAULT
    if not _is_number(text) or not 1 <= int(text) <= schemas.LIMIT_MAX:
        raise InvalidInputError(
            f"limit must be a whole number between 1 and {schemas.LIMIT_MAX}.", field="limit"
        )
    return int(text)
