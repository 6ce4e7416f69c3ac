"""The wide application: everything under `/v1`, on Litestar, for routes that are many and not hot.

Each handler names the scope it needs; the dispatcher in front supplies the check. Every error, a
404 or 405 of Litestar's own included, becomes a problem by RFC 9457.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Controller, Litestar, Request, Response, Router, post
from litestar.connection import ASGIConnection
from litestar.datastructures import State
from litestar.exceptions import HTTPException, MethodNotAllowedException
from litestar.handlers import BaseRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.params import JSONBody
from msgspec import Meta

from waystation import __version__
from waystation.access import Scope
from waystation.api.channel_admission import ChannelAdmission
from waystation.api.problems import problem, problem_for
from waystation.api.reply import Reply
from waystation.api.request import Request as OurRequest
from waystation.api.wide_archive import ArchiveController
from waystation.api.wide_channels import ChannelController
from waystation.api.wide_deliveries import DeliveryController
from waystation.api.wide_history import HistoryController, HistoryPlace
from waystation.api.wide_keys import KeyController, ProjectController
from waystation.api.wide_nodes import NodeController
from waystation.api.wide_pipelines import PipelineController
from waystation.api.wide_pool_dead_letters import PoolDeadLetterController
from waystation.api.wide_pools import PoolController
from waystation.api.wide_subscription_looks import SubscriptionLookController
from waystation.api.wide_subscription_operations import SubscriptionOperationController
from waystation.api.wide_subscriptions import SubscriptionController
from waystation.api.wide_topics import TopicController
from waystation.api.wide_transactions import TransactionController
from waystation.api.wide_webhooks import WebhookController
from waystation.api.wide_why import WhyController
from waystation.catalogue import Catalogue
from waystation.channels.queries import ChannelQueries
from waystation.channels.service import ChannelService
from waystation.delivery.desk import Desk
from waystation.errors import InvalidInputError, NotFoundError, TooLargeError
from waystation.pools import Pools
from waystation.runtime.clock import Clock
from waystation.runtime.ids import IdSource
from waystation.runtime.json_text import too_deep
from waystation.runtime.logging import logger
from waystation.store.time_machine import TimeMachine
from waystation.subscriptions.desk import Desk as SubscriptionDesk
from waystation.subscriptions.dispatch import Dispatch
from waystation.topics.queries import TopicQueries
from waystation.topics.service import TopicService
from waystation.transactions.archive_standing import ArchiveStanding
from waystation.transactions.engine import Engine
from waystation.transactions.reply_desk import ReplyDesk

_log = logger("http")

#: How Litestar tells that the client did not send its whole body; nobody is there to be answered.
_HUNG_UP = "client disconnected prematurely"


class AdvanceTime(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How far to move time."""

    seconds: Annotated[float, Meta(gt=0, le=3660 * 86400)]


class AdvancedTime(msgspec.Struct, kw_only=True):
    """Where time is now."""

    now_ms: int
    shift_ms: int


async def _guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    # A handler that names no scope is Litestar's own for OPTIONS; it needs the strongest key.
    needed = handler.opt.get("scope", Scope.ADMIN)
    state = connection.scope["state"]
    state["access"] = await state["admit"](state["request"], needed)
    if (channel := connection.path_params.get("channel")) is not None:
        header = state["request"].authorization
        await connection.app.state["admission"].guard(channel, header)


class TimeController(Controller):
    """The time machine of test mode."""

    path = "/time"
    tags = ("time",)

    @post("/advance", opt={"scope": Scope.ADMIN}, summary="Move time forward", status_code=200)
    async def advance(self, state: State, data: JSONBody[AdvanceTime]) -> AdvancedTime:
        """Moves the time of the store and of every process; answers once all have it."""
        machine: TimeMachine | None = state["time_machine"]
        if machine is None:
            raise NotFoundError(
                "Time moves by itself.", hint="Start with --time-machine to move it."
            )
        shift_ms = await machine.advance(data.seconds)
        return AdvancedTime(now_ms=state["clock"].now_ms(), shift_ms=shift_ms)


def wide_app(
    catalogue: Catalogue,
    channels: ChannelService,
    listing: ChannelQueries,
    admission: ChannelAdmission,
    desk: Desk,
    topics: TopicService,
    topic_queries: TopicQueries,
    engine: Engine,
    replies: ReplyDesk,
    archiving: ArchiveStanding,
    subscriptions: Dispatch,
    subscription_desk: SubscriptionDesk,
    pools: Pools,
    *,
    clock: Clock,
    identity: IdSource,
    time_machine: TimeMachine | None,
    history_place: HistoryPlace,
    body_bytes_max: int,
) -> Litestar:
    """Builds the application. It serves no document of its own: ours has all routes."""
    return Litestar(
        route_handlers=[_versioned()],
        state=State(
            {
                "catalogue": catalogue,
                "channels": channels,
                "listing": listing,
                "desk": desk,
                "topics": topics,
                "topic_queries": topic_queries,
                "engine": engine,
                "replies": replies,
                "archiving": archiving,
                "subscriptions": subscriptions,
                "subscription_desk": subscription_desk,
                "pools": pools,
                "admission": admission,
                "clock": clock,
                "identity": identity,
                "time_machine": time_machine,
                "history_place": history_place,
            }
        ),
        exception_handlers={Exception: _on_error, HTTPException: _on_error},
        openapi_config=None,
        logging_config=None,
        request_max_body_size=body_bytes_max,
    )


def wide_document() -> dict[str, Any]:
    """The part of the OpenAPI document that tells about these routes."""
    config = OpenAPIConfig(title="Waystation", version=__version__)
    documented = Litestar(route_handlers=[_versioned()], openapi_config=config, logging_config=None)
    return documented.openapi_schema.to_schema()


def _versioned() -> Router:
    return Router(
        "/v1",
        route_handlers=[
            ArchiveController,
            ChannelController,
            DeliveryController,
            HistoryController,
            ProjectController,
            KeyController,
            NodeController,
            PipelineController,
            PoolController,
            PoolDeadLetterController,
            SubscriptionController,
            SubscriptionLookController,
            SubscriptionOperationController,
            TimeController,
            TopicController,
            TransactionController,
            WebhookController,
            WhyController,
        ],
        guards=[_guard],
        security=[{"key": []}],
    )


def _on_error(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    ours: OurRequest = request.scope["state"]["request"]
    request_id, path = ours.id.decode(), ours.scope["path"]
    # Handlers raise neither of these two: the decoder of the body raised them.
    if isinstance(error, RecursionError):
        error = too_deep("body")
    if isinstance(error, UnicodeDecodeError):
        error = InvalidInputError("The body is not UTF-8.", field="body")
    if isinstance(error, HTTPException) and error.status_code < 500:
        reply = _framework_problem(error, path, request_id)
    else:
        reply = problem_for(error, path=path, request_id=request_id)
    if reply.status == 500 and getattr(error, "detail", "") != _HUNG_UP:
        _log.error("request failed", error=error, request=request_id)
    headers = {name.decode(): value.decode() for name, value in reply.headers}
    media_type = headers.pop("content-type")
    return Response(reply.body, status_code=reply.status, headers=headers, media_type=media_type)


def _framework_problem(error: HTTPException, path: str, request_id: str) -> Reply:
    """Litestar's own refusals: no such route, wrong method, a body that does not fit."""
    codes = {404: "not-found", 405: "method-not-allowed", 413: TooLargeError.code}
    code = codes.get(error.status_code)
    detail = str(error.detail)
    extra = error.extra if isinstance(error.extra, list) else []
    if code is None:
        told = "; ".join(f"{each.get('key', 'body')}: {each['message']}" for each in extra)
        # So it tells of a body that is not there at all.
        detail = "A JSON body is needed." if told == "data: 'data'" else told or detail
        code = InvalidInputError.code
    reply = problem(error.status_code, code, detail, path=path, request_id=request_id)
    if isinstance(error, MethodNotAllowedException) and error.headers:
        allow = tuple((k.lower().encode(), v.encode()) for k, v in error.headers.items())
        reply.headers = (*reply.headers, *allow)
    return reply
