"""Signatures by the Standard Webhooks specification, with secrets that can be rotated.

Each request carries `webhook-id` (the same for every attempt of a message), `webhook-timestamp`
(this attempt's) and `webhook-signature`. While a secret is being replaced, requests are signed with
the old one too, so that receivers can change over in their own time.
"""

from __future__ import annotations

import base64
import hmac
from binascii import b2a_base64
from functools import lru_cache

import msgspec

from waystation.runtime.ids import IdSource

#: How long an old secret goes on signing beside the new one.
OVERLAP_MS = 24 * 3600 * 1000
_PREFIX = "whsec_"
_SECRET_BYTES = 24
_SECRET_BYTES_MIN = 16
#: Secrets that are kept at hand, ready to sign: each signs many requests.
_KEYS_KEPT = 1000


class Secret(msgspec.Struct, frozen=True):
    """A signing secret; `until_ms` is 0 for the one in force."""

    text: str
    until_ms: int = 0


def new_secret(identity: IdSource) -> str:
    """A secret in the form that receivers expect."""
    raw = bytes.fromhex(identity.token(_SECRET_BYTES))
    return _PREFIX + base64.b64encode(raw).decode()


def is_secret(text: str) -> bool:
    """Whether a text can be used as a secret: in the form of the specification, and not short."""
    try:
        raw = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except ValueError:
        return False
    return text.startswith(_PREFIX) and len(raw) >= _SECRET_BYTES_MIN


def rotate(secrets: tuple[Secret, ...], text: str, *, now_ms: int) -> tuple[Secret, ...]:
    """Puts a new secret in force; those before it overlap for a while, expired ones go."""
    older = (Secret(each.text, each.until_ms or now_ms + OVERLAP_MS) for each in secrets)
    return (Secret(text), *(each for each in older if each.until_ms > now_ms))


def signed_headers(
    secrets: tuple[Secret, ...], *, message_id: str, body: bytes, now_ms: int
) -> tuple[tuple[str, str], ...]:
    """The three headers of one attempt. A body is signed as it is, be it text or not."""
    seconds = str(now_ms // 1000)
    signed = b"%b.%b.%b" % (message_id.encode(), seconds.encode(), body)
    valid = [
        _signature(each.text, signed)
        for each in secrets
        if not each.until_ms or each.until_ms > now_ms
    ]
    return (
        ("webhook-id", message_id),
        ("webhook-timestamp", seconds),
        ("webhook-signature", " ".join(valid)),
    )


def _signature(secret: str, signed: bytes) -> str:
    keyed = _keyed(secret).copy()
    keyed.update(signed)
    return f"v1,{b2a_base64(keyed.digest(), newline=False).decode()}"


@lru_cache(_KEYS_KEPT)
def _keyed(secret: str) -> hmac.HMAC:
    """An HMAC that has its key and nothing yet: a copy of it costs less than a new one."""
    # Checked once more: what is no base64 must not become a key that anybody could guess.
    key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    return hmac.new(key, digestmod="sha256")
