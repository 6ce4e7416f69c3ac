"""S-11: signatures that the public library of the specification accepts, through a rotation."""

from __future__ import annotations

import base64
import hmac
import time

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from waystation.delivery.signing import OVERLAP_MS, Secret, new_secret, rotate, signed_headers
from waystation.runtime.ids import CountingIds, RandomIds

BODY = b'{"total": 12.50}'


def now_ms() -> int:
    return int(time.time() * 1000)


def headers_for(secrets: tuple[Secret, ...], *, at_ms: int | None = None) -> dict[str, str]:
    return dict(signed_headers(secrets, message_id="msg-1", body=BODY, now_ms=at_ms or now_ms()))


def test_the_public_library_verifies_what_we_sign() -> None:
    secret = new_secret(RandomIds())
    headers = headers_for((Secret(secret),))

    assert Webhook(secret).verify(BODY, headers) == {"total": 12.50}
    assert headers["webhook-id"] == "msg-1"


@pytest.mark.parametrize(
    "change",
    [
        {"webhook-signature": "v1,AAAA"},
        {"webhook-signature": ""},
        {"webhook-id": "msg-2"},
        {"webhook-timestamp": "1"},
        {"webhook-timestamp": "junk"},
    ],
    ids=str,
)
def test_a_changed_or_stale_request_does_not_verify(change: dict[str, str]) -> None:
    secret = new_secret(RandomIds())

    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(BODY, {**headers_for((Secret(secret),)), **change})


def test_another_body_or_secret_does_not_verify() -> None:
    identity = CountingIds()
    secret, other = new_secret(identity), new_secret(identity)
    headers = headers_for((Secret(secret),))

    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(BODY + b" ", headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(other).verify(BODY, headers)


def test_during_a_rotation_receivers_with_the_old_or_the_new_secret_both_verify() -> None:
    identity = CountingIds()
    old, new = new_secret(identity), new_secret(identity)
    secrets = rotate((Secret(old),), new, now_ms=now_ms())

    headers = headers_for(secrets)

    assert headers["webhook-signature"].count("v1,") == 2
    Webhook(old).verify(BODY, headers)
    Webhook(new).verify(BODY, headers)


def test_after_the_overlap_the_old_secret_signs_no_more() -> None:
    identity = CountingIds()
    old, new = new_secret(identity), new_secret(identity)
    secrets = rotate((Secret(old),), new, now_ms=now_ms() - OVERLAP_MS - 1)

    headers = headers_for(secrets)

    Webhook(new).verify(BODY, headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(old).verify(BODY, headers)


def test_a_second_rotation_drops_what_has_expired() -> None:
    identity = CountingIds()
    texts = [new_secret(identity) for _ in range(3)]
    early = now_ms() - OVERLAP_MS - 1
    secrets = rotate((Secret(texts[0]),), texts[1], now_ms=early)

    secrets = rotate(secrets, texts[2], now_ms=now_ms())

    assert [secret.text for secret in secrets] == [texts[2], texts[1]]


def test_bytes_that_are_no_text_are_signed_as_they_are() -> None:
    secret = "whsec_" + base64.b64encode(b"k" * 24).decode()
    body, at_ms = b"\xff\x00\xfe", 1_700_000_000_000

    headers = dict(signed_headers((Secret(secret),), message_id="größe-1", body=body, now_ms=at_ms))

    signed = "größe-1.1700000000.".encode() + body
    expected = base64.b64encode(hmac.digest(b"k" * 24, signed, "sha256")).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
