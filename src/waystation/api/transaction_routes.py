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
from waystation.api.polls import wait_seconds
from waystation.api.problems import status_of
from waystation.api.reply import JSON, Reply, encode, json_reply
from waystation.api.request import Request
from waystation.api.routes import Handler, Route
from waystation.errors import (
    DuplicateTransactionError,
    InvalidInputError,
    OutcomeUnknownError,
    TransactionUnknownError,
    WaystationError,
)
from waystation.runtime.clock import Clock
from waystation.runtime.logging import logger
from waystation.transactions.engine import Engine
from waystation.transactions.order import Order, read_moment, read_orders
from waystation.transactions.start import Receipt
from waystation.transactions.starter import Result
from waystation.transactions.states import State
from waystation.transactions.summary import Summary
from waystation.transactions.switches import Scalar

_log = logger("http")

#: What a client may be told of an error that nobody foresaw.
_UNFORESEEN = "Something went wrong on our side; the log has it."


class _Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    value: Scalar


_is_version = re.compile(r"[0-9]{1,15}", re.ASCII).fullmatch
_is_number = re.compile(r"[0-9]{1,9}", re.ASCII).fullmatch
_decode_value = msgspec.json.Decoder(_Value).decode


class TransactionRoutes:
    """Handlers of `/v1/transactions`."""

    def __init__(self, engine: Engine, *, clock: Clock, wait_seconds_max: float) -> None:
        assert engine.finder is not None, "a process that serves has an archive"
        self._starter = engine.starter
        self._transactions = engine.transactions
        self._listing = engine.listing
        self._finder = engine.finder
        self._clock = clock
        self._wait_seconds_max = wait_seconds_max

    async def start(self, request: Request) -> Reply:
        """POST /v1/transactions"""
        assert request.access is not None
        trace = next((v for k, v in request.scope["headers"] if k == b"traceparent"), b"")
        orders, many = read_orders(await request.body(), traceparent=trace.decode("latin-1"))
        if many:
            results = await self._starter.start_many(request.access.project, orders)
            return json_reply({"results": _told(orders, results)})
        receipt = await self._starter.start(request.access.project, orders[0])
        summary = receipt.summary
        if orders[0].long_poll:
            summary = await self._end_of(receipt, request)
        return json_reply(_warned(orders[0], summary), 200 if receipt.duplicate else 201)

    async def get(self, request: Request) -> Reply:
        """GET /v1/transactions/{id}?wait=30s&after=7"""
        (transaction_id,) = request.params
        return await self._looked_at(request, transaction_id)

    async def get_by_external_id(self, request: Request) -> Reply:
        """GET /v1/transactions/by-external-id/{externalId}?wait=30s&after=7"""
        assert request.access is not None
        (external_id,) = request.params
        found = await self._finder.by_external_id(request.access.project, external_id)
        if found is None:
            raise TransactionUnknownError("No transaction has this external id.")
        return await self._looked_at(request, found.id)

    async def _looked_at(self, request: Request, transaction_id: str) -> Reply:
        assert request.access is not None
        summary = await self._transactions.get(
            request.access.project,
            transaction_id,
            wait_seconds=wait_seconds(request.query("wait"), most=self._wait_seconds_max),
            after=_after(request.query("after")),
            abandonment=request.abandonment,
        )
        return Reply(200, encode(summary) + b"\n", (JSON,))

    async def list_(self, request: Request) -> Reply:
        """GET /v1/transactions?state=&pipeline=&external_id=&archived="""
        assert request.access is not None
        project, external_id = request.access.project, request.query("external_id")
        if external_id is not None:
            for name in ("state", "pipeline", "cursor", "archived", "status", "since"):
                if request.query(name):
                    raise InvalidInputError(
                        "An external id leads to one transaction; nothing else can be asked for.",
                        field="external_id",
                    )
            rows = await self._listing.by_external_id(project, external_id)
            rows = rows or await self._finder.newest(project, external_id)
            return json_reply({"transactions": rows, "cursor": ""})
        limit, cursor = _limit(request.query("limit")), request.query("cursor") or ""
        pipeline = request.query("pipeline") or ""
        if _is_archived(request):
            rows, following = await self._finder.archived(
                project,
                _statuses(request.query("status")),
                pipeline=pipeline,
                since_ms=self._since(request.query("since")),
                cursor=cursor,
                limit=limit,
            )
        else:
            state = _state(request.query("state"))
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

    async def _end_of(self, receipt: Receipt, request: Request) -> Summary:
        """How it has ended, or how it stands when its client has waited for long enough."""
        assert request.access is not None
        try:
            return await self._transactions.get(
                request.access.project,
                receipt.id,
                wait_seconds=self._wait_seconds_max,
                abandonment=request.abandonment,
                duplicate=receipt.duplicate,
            )
        except WaystationError as error:
            # It is started: an error here would say that it was not.
            _log.warning("a start was not waited for", transaction=receipt.id, problem=str(error))
            return receipt.summary

    def _since(self, text: str | None) -> int:
        if not text:
            return 0
        given = int(text) if _is_version(text) else text
        moment = read_moment(given, field="since")
        return max(0, self._clock.now_ms() - moment.ms) if moment.after_start else moment.ms

    def routes(self) -> list[Route]:
        """The six rows of the route table."""
        path, one = "/v1/transactions", "/v1/transactions/{id}"
        known = "/v1/transactions/by-external-id/{externalId}"
        switch = "/v1/transactions/{id}/switches/{name}"
        return [
            _row("POST", path, self.start, schemas.START),
            _row("GET", path, self.list_, schemas.LIST),
            _row("GET", one, self.get, schemas.GET),
            _row("GET", known, self.get_by_external_id, schemas.GET_BY_EXTERNAL_ID),
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


def _warned(order: Order, summary: Summary) -> Summary:
    """Add the warnings of an order to the reply, if it has any."""
    if not order.warnings:
        return summary
    return msgspec.structs.replace(summary, warnings=order.warnings)


def _told(orders: Sequence[Order], results: Sequence[Result]) -> list[object]:
    """What became of each order of a list; raises where nothing was started."""
    problems = [each for each in results if isinstance(each, WaystationError)]
    if len(problems) == len(results):
        # Doubt first: a client that is told "full" would send all of it again.
        unknown = (each for each in problems if isinstance(each, OutcomeUnknownError))
        raise next(unknown, problems[0])
    return [
        _warned(order, each.summary) if isinstance(each, Receipt) else _refused(each)
        for order, each in zip(orders, results, strict=True)
    ]


def _refused(error: WaystationError) -> dict[str, object]:
    code, detail = error.code, str(error)
    if status_of(error) == 500:
        _log.error("a transaction was not started", error=error)
        code, detail = WaystationError.code, _UNFORESEEN
    told: dict[str, object] = {"code": code, "detail": detail}
    if isinstance(error, DuplicateTransactionError):
        told["existing_id"] = error.existing_id
    return {"error": told}


def _after(text: str | None) -> int | None:
    if text is not None and not _is_version(text):
        raise InvalidInputError(
            "after is not a number.", field="after", hint="Take sequenceOfUpdate of an answer."
        )
    return int(text) if text is not None else None


def _is_archived(request: Request) -> bool:
    """Whether the archive is asked; parameters of the other list are refused."""
    archived = request.query("archived") or "false"
    if archived not in ("true", "false"):
        raise InvalidInputError("archived is true or false.", field="archived")
    others = ("state",) if archived == "true" else ("status", "since")
    for name in others:
        if request.query(name):
            told = "status" if archived == "true" else "archived=true"
            raise InvalidInputError(
                f"{name} is not for this list.", field=name, hint=f"Use {told}."
            )
    return archived == "true"


def _statuses(text: str | None) -> list[str]:
    statuses = list(dict.fromkeys(text.split(","))) if text else []
    for each in statuses:
        if each not in schemas.ARCHIVED_STATUSES:
            raise InvalidInputError(
                f"There is no status {each[:40]!r}.",
                field="status",
                hint=f"There are {', '.join(schemas.ARCHIVED_STATUSES)}; several with a comma.",
            )
    return statuses


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
