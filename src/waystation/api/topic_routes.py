"""Routes that produce messages to a topic and browse its messages.

`produce` checks the whole request before it writes anything: format, schema and rate limit, in this
order. The messages of a batch go to different partitions, so each one has its own result. The reply
is an error only if no message was accepted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from waystation.access import Scope
from waystation.api import topic_schemas as schemas
from waystation.api.problems import problem_for, status_of
from waystation.api.reply import JSON, Reply, encode, json_reply
from waystation.api.request import Request
from waystation.api.routes import Route
from waystation.errors import (
    InvalidInputError,
    RateLimitedError,
    WaystationError,
)
from waystation.messages.envelope import check_key, check_time_ms
from waystation.messages.formats import read_request
from waystation.runtime.ids import IdSource, SequentialIds
from waystation.runtime.logging import logger
from waystation.topics.model import require_open
from waystation.topics.producer import Producer, ProduceResult
from waystation.topics.queries import LIMIT_DEFAULT, TopicQueries
from waystation.topics.rate_limits import RateLimiter
from waystation.topics.schemas import SchemaValidator
from waystation.topics.service import TopicService
from waystation.types.common import Problem
from waystation.types.message import Receipt, RefusedMessage
from waystation.types.topic import StoredMessagePage

_log = logger("http")

_is_integer = re.compile(r"-?[0-9]{1,18}", re.ASCII).fullmatch
#: Text of a result for an unexpected error, whose details only the log has.
_INTERNAL = "Something went wrong on our side; the log has it."


class TopicRoutes:
    """Handlers of `/v1/topics/{topic}/messages`."""

    def __init__(
        self,
        topics: TopicService,
        producer: Producer,
        queries: TopicQueries,
        *,
        ids: IdSource,
        message_bytes_max: int,
        schemas: SchemaValidator,
        limits: RateLimiter,
        body_bytes_max: int,
    ) -> None:
        self._topics = topics
        self._producer = producer
        self._queries = queries
        # Ids of messages are unique but need not be secret.
        self._message_ids = SequentialIds(ids)
        self._message_bytes_max = message_bytes_max
        self._schemas = schemas
        self._limits = limits
        self._body_bytes_max = body_bytes_max

    async def produce(self, request: Request) -> Reply:
        """POST /v1/topics/{topic}/messages"""
        assert request.access is not None
        project, (name,) = request.access.project, request.params
        topic = self._topics.get_recent(project, name) or await self._topics.get(project, name)
        require_open(topic)
        body = await request.body()
        received = read_request(
            topic,
            request.scope["headers"],
            body,
            ids=self._message_ids,
            bytes_max=self._message_bytes_max,
        )
        envelopes = received.envelopes
        # Most topics have neither a schema nor a rate limit, and this is the hottest route.
        if topic.options.json_schema is not None:
            await self._schemas.check(topic, envelopes, batch=received.batch)
        headers: tuple[tuple[bytes, bytes], ...] = (JSON,)
        admission = None
        if topic.options.rate.mode != "disabled":
            admission = self._limits.admit(topic, messages=len(envelopes), size=received.size)
        if admission is not None:
            try:
                admission.require()
            except RateLimitedError as error:
                reply = _problem(error, request)
                reply.headers += admission.headers
                return reply
            headers += admission.headers
        batch, ids = received.batch, [each.id for each in envelopes]
        call = self._producer.enqueue(project, name, envelopes)
        # The messages are packed now. Free the originals before the wait, because those of many
        # waiting requests would fill the processor's caches.
        del body, received, envelopes
        results = await call.wait()
        if batch:
            return Reply(200, _encode_results(results, ids), headers)
        (result,) = results
        if not isinstance(result, Receipt):
            raise result
        return Reply(200, encode(result) + b"\n", headers)

    async def browse(self, request: Request) -> Reply:
        """GET /v1/topics/{topic}/messages?partition=|group=|id="""
        group, message_id = request.query("group"), request.query("id")
        limit, cursor = _integer_of(request, "limit", LIMIT_DEFAULT), request.query("cursor") or ""
        assert request.access is not None
        project, (name,) = request.access.project, request.params
        if group is None and message_id is None:
            return json_reply(await self._browse_partition(request, project, name, cursor, limit))
        _check_no_position(request)
        if group is not None:
            check_key(group, field="group")
        if message_id is None:
            assert group is not None
            found = self._queries.messages_of_group(
                project, name, group, cursor=cursor, limit=limit
            )
        else:
            check_key(message_id, field="id")
            found = self._queries.messages_with_id(
                project, name, message_id, group=group, cursor=cursor, limit=limit
            )
        return json_reply(await found)

    async def _browse_partition(
        self, request: Request, project: str, name: str, cursor: str, limit: int
    ) -> StoredMessagePage:
        offset, since_ms = request.query("offset"), request.query("time_ms")
        if request.query("partition") is None:
            # Check the topic first, because a missing topic is the more useful error.
            await self._topics.get(project, name)
            raise InvalidInputError(
                "The request names no partition, group or id.",
                field="partition",
                hint="Add ?partition=0, ?group=… or ?id=….",
            )
        return await self._queries.messages_in_partition(
            project,
            name,
            storage=_integer_of(request, "storage"),
            partition=_integer_of(request, "partition"),
            offset=None if offset is None else _integer_of(request, "offset"),
            since_ms=None
            if since_ms is None
            else check_time_ms(_integer_of(request, "time_ms"), field="time_ms"),
            cursor=cursor,
            limit=limit,
        )

    def routes(self) -> list[Route]:
        """Return the two rows of the route table."""
        path = "/v1/topics/{topic}/messages"
        return [
            Route(
                method="POST",
                path=path,
                handler=self.produce,
                scope=Scope.WRITE,
                manner="own",
                body_bytes_max=self._body_bytes_max,
                tag="topics",
                summary="Produce messages",
                description=schemas.PRODUCE,
                parameters=(schemas.TOPIC,),
                request_body={
                    "description": "A payload, a CloudEvent, or a batch of either.",
                    "content": schemas.FORMS,
                },
                responses=schemas.PRODUCED,
            ),
            Route(
                method="GET",
                path=path,
                handler=self.browse,
                scope=Scope.READ,
                manner="own",
                tag="topics",
                summary="Look at messages",
                description=schemas.BROWSE,
                parameters=(schemas.TOPIC, *schemas.CHOICE),
                responses=schemas.BROWSED,
            ),
        ]


def _encode_results(results: Sequence[ProduceResult], ids: Sequence[str]) -> bytes:
    """Return the reply to a batch. Raise the error if all messages failed with the same code."""
    problems = [each for each in results if isinstance(each, WaystationError)]
    if len(problems) == len(results) and len({each.code for each in problems}) == 1:
        raise problems[0]
    if not problems:
        return encode({"results": results}) + b"\n"
    shown = [
        each if isinstance(each, Receipt) else _refused_message(message_id, each)
        for each, message_id in zip(results, ids, strict=True)
    ]
    return encode({"results": shown}) + b"\n"


def _refused_message(message_id: str, error: WaystationError) -> RefusedMessage:
    problem = Problem(code=error.code, detail=str(error), hint=error.hint)
    if status_of(error) == 500:
        _log.error("message not produced", error=error)
        problem = Problem(code=WaystationError.code, detail=_INTERNAL)
    return RefusedMessage(id=message_id, error=problem)


def _problem(error: WaystationError, request: Request) -> Reply:
    return problem_for(error, path=request.scope["path"], request_id=request.id.decode())


def _integer_of(request: Request, name: str, default: int = 0) -> int:
    """Return an integer parameter of the query. Raise InvalidInputError if it is invalid."""
    text = request.query(name)
    if text is None:
        return default
    if not _is_integer(text):
        raise InvalidInputError(f"{name} must be an integer.", field=name)
    return int(text)


def _check_no_position(request: Request) -> None:
    for field in ("storage", "partition", "offset", "time_ms"):
        if request.query(field) is not None:
            raise InvalidInputError(
                f"{field} applies to a partition and cannot be combined with a group or an id.",
                field=field,
            )
