"""A sample: one message made up for a subscription, sent as its messages are, and what came of it.

It is not in the topic, counts as no attempt and is not recorded: it is for whoever sets up an
endpoint and wants to see the request and the reply. A pipeline or a channel gets it, too.
"""

from __future__ import annotations

import msgspec

from waystation.delivery.request import Outcome
from waystation.delivery.schedule import describe
from waystation.delivery.signing import Secret
from waystation.messages.envelope import Envelope, Headers
from waystation.runtime.ids import IdSource
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.endpoints.http import HttpEndpoint
from waystation.subscriptions.endpoints.means import Means
from waystation.subscriptions.endpoints.opening import open_endpoint
from waystation.subscriptions.endpoints.protocol import Endpoint, Parcel
from waystation.subscriptions.positions import Position

_ID_BYTES = 8
_GROUP = "sample"
_HEADERS = (("content-type", "application/json"), ("x-waystation-sample", "true"))


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A request and its reply."""

    #: Its first line: method and URL; or the endpoint alone, where it is none of HTTP.
    request: str
    #: Of the request, as they were sent.
    headers: Headers
    body: str
    #: Of the reply; 0 without one.
    status: int
    #: Why it failed, in a sentence; empty if it was accepted.
    problem: str
    #: The beginning of the reply's body; what is no text is shown as it can be.
    excerpt: str
    seconds: float


async def send_sample(
    subscription: Subscription,
    secrets: tuple[Secret, ...],
    means: Means,
    *,
    identity: IdSource,
) -> Sample:
    """Sends one sample to the endpoint of a subscription, paused or not."""
    parcel = _parcel(subscription, identity)
    endpoint: Endpoint = open_endpoint(subscription, secrets, means)
    line = subscription.endpoint
    headers: Headers = ()
    began = means.clock.uptime_s()
    if isinstance(endpoint, HttpEndpoint):
        request = endpoint.request(parcel)
        line, headers = f"{request.method} {request.url}", request.headers
        outcome = await means.sender.send(request)
    else:
        (outcome,) = await endpoint.send([parcel])
    seconds = means.clock.uptime_s() - began
    return _sample(line, headers, parcel.message.data, outcome, seconds)


def _parcel(subscription: Subscription, identity: IdSource) -> Parcel:
    body = {"sample": True, "subscription": subscription.name, "topic": subscription.topic}
    message = Envelope(
        id=f"sample-{identity.token(_ID_BYTES)}",
        project=subscription.project,
        data=msgspec.json.encode(body),
        group=_GROUP,
        headers=_HEADERS,
    )
    return Parcel(
        message=message,
        position=Position(subscription.incarnation, 0, 0, 0),
        attempt=1,
        subscription=subscription.name,
        incarnation=subscription.incarnation,
    )


def _sample(line: str, headers: Headers, body: bytes, outcome: Outcome, seconds: float) -> Sample:
    return Sample(
        request=line,
        headers=headers,
        body=body.decode(),
        status=outcome.status,
        problem="" if outcome.succeeded else describe(outcome),
        excerpt=outcome.excerpt.decode(errors="replace"),
        seconds=seconds,
    )
