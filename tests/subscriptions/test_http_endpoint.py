"""HTTP endpoints: the message as it came, signed, with where it is from; addresses are judged."""

from __future__ import annotations

import pytest
from standardwebhooks import Webhook

from tests.subscriptions.parcels import means_with, parcel, subscription_to
from waystation.delivery.request import Failure
from waystation.delivery.signing import Secret, new_secret, rotate
from waystation.runtime.ids import RandomIds
from waystation.subscriptions.endpoints.http import HttpEndpoint, target_of
from waystation.subscriptions.endpoints.opening import open_endpoint
from waystation.testing.endpoint import Answer, FakeEndpoint, ReceivedRequest

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def secret() -> Secret:
    return Secret(new_secret(RandomIds()))


async def sent(
    *secrets: Secret, message: dict[str, object] | None = None, **options: object
) -> ReceivedRequest:
    """The request that an endpoint gets."""
    async with FakeEndpoint() as receiver, means_with() as means:
        endpoint = open_endpoint(subscription_to(receiver.url, **options), secrets, means)
        (outcome,) = await endpoint.send([parcel(**(message or {}))])  # type: ignore[arg-type]
        assert outcome.succeeded, outcome
        (request,) = receiver.received
        return request


async def test_a_message_arrives_as_it_was_produced_with_where_it_comes_from() -> None:
    headers = (("content-type", "application/json"), ("x-shop", "17"), ("ce-type", "order"))
    request = await sent(message={"headers": headers, "traceparent": TRACE})

    assert (request.method, request.path, request.body) == ("POST", "/hook", b'{"n": 1}')
    expected = {
        **dict(headers),
        "traceparent": TRACE,
        "waystation-subscription": "billing",
        "waystation-topic": "orders",
        "waystation-group": "order-17",
        "waystation-position": "0.3.17",
        "waystation-attempt": "1",
        "waystation-id": "o17-0",
        "webhook-id": "billing:1:0-3-17:o17-0",
    }
    assert {name: request.headers[name] for name in expected} == expected
    assert "webhook-signature" not in request.headers, "there is no secret to sign with"


async def test_what_a_message_does_not_have_is_not_sent() -> None:
    request = await sent(message={"group": None})

    assert "waystation-group" not in request.headers
    assert "traceparent" not in request.headers
    assert request.headers["content-type"] == "application/octet-stream", "not a form"


async def test_the_public_library_verifies_the_signature_of_each_secret() -> None:
    old, new = secret(), new_secret(RandomIds())
    request = await sent(*rotate((old,), new, now_ms=2**42))

    for text in (old.text, new):
        assert Webhook(text).verify(request.body, request.headers) == {"n": 1}


async def test_bytes_that_are_no_text_and_letters_of_any_language_arrive_signed() -> None:
    data = bytes(range(256))
    request = await sent(secret(), message={"data": data, "id": "größe-1", "group": "注文 17"})

    assert request.body == data
    for name, value in (
        ("waystation-id", "größe-1"),
        ("webhook-id", "billing:1:0-3-17:größe-1"),
        ("waystation-group", "注文 17"),
    ):
        # The test's server reads bytes one by one; what was sent is UTF-8, as it was produced.
        assert request.headers[name].encode("latin-1").decode() == value
    assert request.headers["webhook-signature"].startswith("v1,")


async def test_a_repetition_has_the_same_id_and_a_rewind_another() -> None:
    first, again = await sent(), await sent(message={"attempt": 2})
    assert first.headers["webhook-id"] == again.headers["webhook-id"]
    assert again.headers["waystation-attempt"] == "2"

    rewound = await sent(message={"incarnation": 3})
    assert rewound.headers["webhook-id"] == "billing:3:0-3-17:o17-0"
    assert rewound.headers["waystation-id"] == "o17-0"


async def test_method_and_headers_are_those_of_the_subscription() -> None:
    own = (("X-Shop", "ours"), ("Content-Type", "application/cloudevents+json"))
    headers = (("content-type", "text/plain"), ("x-shop", "theirs"), ("x-kept", "yes"))
    request = await sent(message={"headers": headers}, method="PUT", headers=own)

    assert request.method == "PUT"
    assert request.headers["x-shop"] == "ours"
    assert request.headers["content-type"] == "application/cloudevents+json"
    assert request.headers["x-kept"] == "yes"


async def test_an_answer_that_takes_longer_than_the_options_say_is_a_timeout() -> None:
    async with FakeEndpoint(plan=[Answer(hang=True)]) as receiver, means_with() as means:
        subscription = subscription_to(receiver.url, timeout_seconds=0.2)
        (outcome,) = await open_endpoint(subscription, (), means).send([parcel()])
        assert outcome.failure is Failure.TIMEOUT


@pytest.mark.parametrize("status", [200, 204, 301, 410, 429, 500])
async def test_what_the_receiver_says_is_the_outcome(status: int) -> None:
    """F-17: a redirect is an answer like any other, and is not followed."""
    answer = Answer(status, headers=(("retry-after", "7"), ("location", "/elsewhere")))
    async with FakeEndpoint(plan=[answer]) as receiver, means_with() as means:
        endpoint = open_endpoint(subscription_to(receiver.url), (), means)
        (outcome,) = await endpoint.send([parcel()])
        assert (outcome.status, outcome.succeeded) == (status, status < 300)
        assert len(receiver.received) == 1
        if status >= 300:
            assert outcome.retry_after == 7.0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "169.254.169.254"])
async def test_an_address_that_must_not_be_reached_is_not(host: str) -> None:
    """P9: on the socket, whatever was accepted when the subscription was created."""
    async with FakeEndpoint() as receiver, means_with(loopback=False) as means:
        url = f"http://{host}:{receiver.port}/hook"
        (outcome,) = await open_endpoint(subscription_to(url), (), means).send([parcel()])
        assert outcome.failure in (Failure.FORBIDDEN, Failure.NAME)
        assert not receiver.connections


async def test_subscriptions_to_one_url_share_a_standing_and_others_do_not() -> None:
    async with means_with() as means:
        one, two = (
            HttpEndpoint(subscription_to("https://crm.example/hook"), secrets, means)
            for secrets in ((), (secret(),))
        )
        assert one.target == two.target == target_of("https://crm.example/hook")
        assert one.target.startswith("crm.example:")
    assert target_of("https://crm.example/other") != one.target
