"""The channel routes, with the paths, parameters, status codes and JSON of DSPS."""

from __future__ import annotations

import re

from waystation.access import Scope
from waystation.api import channel_schemas as schemas
from waystation.api.channel_admission import ChannelAdmission
from waystation.api.problems import dsps_error
from waystation.api.reply import JSON, Reply, encode
from waystation.api.request import Request
from waystation.api.routes import Route
from waystation.channels.model import Fetched, encode_handle
from waystation.channels.service import ChannelService
from waystation.errors import MessageMalformedError
from waystation.runtime.durations import parse_duration
from waystation.runtime.ids import is_name
from waystation.runtime.json_text import check_depth, is_json

_DEFAULT_LIMIT = 64
_is_integer = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII).fullmatch


class ChannelRoutes:
    """Handlers of `/channel/…`."""

    def __init__(
        self,
        channels: ChannelService,
        admission: ChannelAdmission,
        *,
        poll_seconds_max: float,
        fetch_messages_max: int,
    ) -> None:
        self._channels = channels
        self._admission = admission
        self._poll_seconds_max = poll_seconds_max
        self._fetch_messages_max = fetch_messages_max

    async def publish(self, request: Request) -> Reply:
        """PUT /channel/{channelID}/message/{messageID}"""
        channel, message_id = request.params
        if not is_name(message_id):
            return _invalid("messageID")
        content = await request.body()
        if not is_json(content):
            check_depth(content, field="body")
            raise MessageMalformedError("Request body is not JSON")
        assert request.access is not None
        await self._channels.publish(
            request.access.project, channel, message_id, content.strip(b" \t\r\n")
        )
        return _ok(b'{"channelID":"%b","messageID":"%b"}\n', channel, message_id)

    async def subscribe(self, request: Request) -> Reply:
        """PUT /channel/{channelID}/subscription/polling/{subscriberID}"""
        channel, subscriber = request.params
        if not is_name(subscriber):
            return _invalid("subscriberID")
        assert request.access is not None
        await self._channels.subscribe(request.access.project, channel, subscriber)
        return _ok(b'{"channelID":"%b","subscriberID":"%b"}\n', channel, subscriber)

    async def unsubscribe(self, request: Request) -> Reply:
        """DELETE /channel/{channelID}/subscription/polling/{subscriberID}"""
        channel, subscriber = request.params
        if not is_name(subscriber):
            return _invalid("subscriberID")
        assert request.access is not None
        await self._channels.unsubscribe(request.access.project, channel, subscriber)
        return _ok(b'{"channelID":"%b","subscriberID":"%b"}\n', channel, subscriber)

    async def fetch(self, request: Request) -> Reply:
        """GET /channel/{channelID}/subscription/polling/{subscriberID}?timeout=&max="""
        channel, subscriber = request.params
        if not is_name(subscriber):
            return _invalid("subscriberID")
        timeout = request.query("timeout")
        wait_s = 0.0 if timeout is None else parse_duration(timeout)
        if wait_s is None:
            return _invalid("timeout")
        limit = self._limit(request.query("max"))
        if limit is None:
            return _invalid("max")
        assert request.access is not None
        fetched = await self._channels.fetch(
            request.access.project,
            channel,
            subscriber,
            limit=limit,
            wait_s=min(wait_s, self._poll_seconds_max),
            disconnected=request.abandonment,
        )
        return Reply(200, _fetched_json(channel, subscriber, fetched), (JSON,))

    async def ack(self, request: Request) -> Reply:
        """DELETE /channel/{channelID}/subscription/polling/{subscriberID}/message?ackHandle="""
        channel, subscriber = request.params
        if not is_name(subscriber):
            return _invalid("subscriberID")
        handle = request.query("ackHandle") or request.query("receiptHandle")
        if not handle:
            return dsps_error(400, 'Missing "ackHandle" parameter')
        assert request.access is not None
        await self._channels.ack(request.access.project, channel, subscriber, handle)
        return Reply(204)

    def _limit(self, text: str | None) -> int | None:
        if text is None:
            return _DEFAULT_LIMIT
        if not _is_integer(text) or not 0 <= int(text) <= self._fetch_messages_max:
            return None
        return int(text)

    def routes(self) -> list[Route]:
        """The five rows of the route table."""
        subscription = "/channel/{channelID}/subscription/polling/{subscriberID}"
        subscriber_params = (
            schemas.CHANNEL,
            schemas.parameter("subscriberID", "Name of the subscriber."),
        )
        return [
            Route(
                method="PUT",
                path="/channel/{channelID}/message/{messageID}",
                handler=self.publish,
                scope=Scope.WRITE,
                manner="dsps",
                precheck=self._admission.check_channel,
                admission=self._admission.admit,
                tag="channels",
                verb="PublishMessages",
                summary="Publish a message",
                description="The first content under an id wins; a repetition answers the same.",
                parameters=(
                    schemas.CHANNEL,
                    schemas.parameter("messageID", "Id for deduplication."),
                ),
                request_body={"description": "Any JSON value.", "schema": {}},
                responses={
                    200: ("Accepted, or known already.", "application/json", schemas.PUBLISHED),
                    413: ("The body is over the limit.", "application/json", schemas.ERROR),
                    507: ("The store, or the channel, is full.", "application/json", schemas.ERROR),
                    **schemas.COMMON,
                },
            ),
            Route(
                method="PUT",
                path=subscription,
                handler=self.subscribe,
                scope=Scope.WRITE,
                manner="dsps",
                precheck=self._admission.check_channel,
                admission=self._admission.admit,
                tag="channels",
                verb="NewSubscriber",
                summary="Create a subscriber",
                description="It sees what is published from now on. Again: it keeps its place.",
                parameters=subscriber_params,
                responses={
                    200: ("The subscriber is there.", "application/json", schemas.SUBSCRIBER),
                    507: ("The store, or the channel, is full.", "application/json", schemas.ERROR),
                    **schemas.COMMON,
                },
            ),
            Route(
                method="DELETE",
                path=subscription,
                handler=self.unsubscribe,
                scope=Scope.WRITE,
                manner="dsps",
                precheck=self._admission.check_channel,
                admission=self._admission.admit,
                tag="channels",
                verb="RemoveSubscriber",
                summary="Delete a subscriber",
                parameters=subscriber_params,
                responses={
                    200: ("The subscriber is not there.", "application/json", schemas.SUBSCRIBER),
                    **schemas.COMMON,
                },
            ),
            Route(
                method="GET",
                path=subscription,
                handler=self.fetch,
                scope=Scope.READ,
                manner="dsps",
                precheck=self._admission.check_channel,
                admission=self._admission.admit,
                tag="channels",
                verb="FetchMessages",
                summary="Fetch unread messages, waiting for the first",
                description="Nothing is removed: the same messages come until acknowledged.",
                parameters=(
                    *subscriber_params,
                    schemas.parameter(
                        "timeout",
                        "How long to wait: `30s`, `500ms`, `1m30s`, `0`.",
                        "query",
                        {"type": "string", "default": "0"},
                    ),
                    schemas.parameter(
                        "max",
                        "Most messages to return.",
                        "query",
                        {
                            "type": "integer",
                            "minimum": 0,
                            "maximum": self._fetch_messages_max,
                            "default": _DEFAULT_LIMIT,
                        },
                    ),
                ),
                responses={
                    200: (
                        "Unread messages, oldest first; empty after the time-out.",
                        "application/json",
                        schemas.FETCHED,
                    ),
                    404: ("There is no such subscriber.", "application/json", schemas.ERROR),
                    **schemas.COMMON,
                },
            ),
            Route(
                method="DELETE",
                path=subscription + "/message",
                handler=self.ack,
                scope=Scope.WRITE,
                manner="dsps",
                precheck=self._admission.check_channel,
                admission=self._admission.admit,
                tag="channels",
                verb="AcknowledgeMessages",
                summary="Acknowledge everything up to a handle",
                parameters=(
                    *subscriber_params,
                    schemas.parameter("ackHandle", "From a fetch.", "query", {"type": "string"}),
                    schemas.parameter(
                        "receiptHandle", "The older name of ackHandle.", "query", {"type": "string"}
                    ),
                ),
                responses={
                    204: ("Acknowledged, now or before.", "", {}),
                    404: ("There is no such subscriber.", "application/json", schemas.ERROR),
                    **schemas.COMMON,
                },
            ),
        ]


def _ok(template: bytes, first: str, second: str) -> Reply:
    # Names need no escaping, so the body is put together without an encoder.
    return Reply(200, template % (first.encode(), second.encode()), (JSON,))


def _invalid(name: str) -> Reply:
    return dsps_error(400, f'Invalid "{name}" parameter')


def _fetched_json(channel: str, subscriber: str, fetched: Fetched) -> bytes:
    # Put together without an encoder: names, numbers and handles need no escaping.
    messages = [
        b'{"messageID":%b,"content":%b}' % (encode(message.id), message.content)
        for message in fetched.messages
    ]
    tail = b""
    if fetched.expired:
        tail += b',"lostMessages":%d' % fetched.expired
    if fetched.last is not None:
        tail += b',"ackHandle":"%b"' % encode_handle(channel, subscriber, fetched.last).encode()
    return b'{"channelID":"%b","messages":[%b],"moreMessages":%b%b}\n' % (
        channel.encode(),
        b",".join(messages),
        b"true" if fetched.more else b"false",
        tail,
    )
