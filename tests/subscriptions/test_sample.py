"""A sample: what a subscription would send, and what came back, for who sets up an endpoint."""

from __future__ import annotations

import msgspec
from standardwebhooks import Webhook

from tests.subscriptions.parcels import means_with, subscription_to
from waystation.channels.model import Published
from waystation.delivery.signing import Secret, new_secret
from waystation.runtime.ids import CountingIds, RandomIds
from waystation.subscriptions.endpoints.sample import Sample, send_sample
from waystation.testing.endpoint import Answer, FakeEndpoint

SECRET = Secret(new_secret(RandomIds()))


async def test_a_sample_is_signed_and_shows_request_and_reply() -> None:
    answer = Answer(202, body=b"thank you \xff")
    async with FakeEndpoint(plan=[answer]) as receiver, means_with() as means:
        subscription = subscription_to(receiver.url, headers=(("X-Shop", "17"),))
        sample = await send_sample(subscription, (SECRET,), means, identity=CountingIds())
        (request,) = receiver.received

    assert sample.request == f"POST {subscription.endpoint}"
    assert sample.body.encode() == request.body
    body = {"sample": True, "subscription": "billing", "topic": "orders"}
    assert Webhook(SECRET.text).verify(request.body, request.headers) == body
    for name, value in sample.headers:
        assert request.headers[name.lower()] == value, "as they were sent"
    assert dict(sample.headers)["waystation-id"] == "sample-0000000000000001"
    assert dict(sample.headers)["webhook-id"] == "billing:1:0-0-0:sample-0000000000000001"
    assert (sample.status, sample.problem) == (202, "")
    assert sample.excerpt == "thank you \ufffd"
    assert sample.seconds > 0


async def test_a_sample_that_fails_says_why() -> None:
    async with FakeEndpoint(plan=[503, Answer(hang=True)]) as receiver, means_with() as means:
        subscription = subscription_to(receiver.url, timeout_seconds=2.0)
        refused, hung = [
            await send_sample(subscription, (SECRET,), means, identity=RandomIds())
            for _ in range(2)
        ]
    assert (refused.status, refused.problem) == (503, "the endpoint answered 503")
    assert (hung.status, hung.problem) == (0, "the endpoint took too long")


async def test_a_sample_to_an_address_that_must_not_be_reached_is_not_sent() -> None:
    async with FakeEndpoint() as receiver, means_with(loopback=False) as means:
        subscription = subscription_to(receiver.url)
        sample = await send_sample(subscription, (), means, identity=RandomIds())
        assert sample.problem == "the endpoint's address is not allowed"
        assert not receiver.connections


async def test_a_channel_gets_a_sample_as_any_message() -> None:
    published: list[tuple[str, bytes]] = []

    async def publish_many(
        project: str, channel: str, messages: list[tuple[str, bytes]]
    ) -> list[Published]:
        published.extend(messages)
        return [Published(1, duplicate=False) for _ in messages]

    async with means_with(publish_many=publish_many) as means:
        subscription = subscription_to("channel:orders")
        sample = await send_sample(subscription, (), means, identity=CountingIds())
    ((published_id, body),) = published
    assert published_id.startswith("sample-0000000000000001-")
    assert body == sample.body.encode()
    assert (sample.request, sample.headers, sample.status) == ("channel:orders", (), 200)


def test_a_sample_can_be_shown_as_json() -> None:
    sample = Sample(
        request="POST http://127.0.0.1/",
        headers=(("a", "b"),),
        body="{}",
        status=200,
        problem="",
        excerpt="ok",
        seconds=0.1,
    )
    assert msgspec.json.decode(msgspec.json.encode(sample), type=Sample) == sample
