"""Signatures by the Standard Webhooks specification, with secrets that can be rotated.

Each request carries `webhook-id` (the same for every attempt of a message), `webhook-timestamp`
(this attempt's) and `webhook-signature`. While a secret is being replaced, requests are signed with
the old one too, so that receivers can change over in their own time.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime

import msgspec
from standardwebhooks import Webhook

from waystation.ids import Identity

#: How long an old secret goes on signing beside the new one.
OVERLAP_MS = 24 * 3600 * 1000
_PREFIX = "whsec_"
_SECRET_BYTES = 24
_SECRET_BYTES_MIN = 16


class Secret(msgspec.Struct, frozen=True):
    """A signing secret; `until_ms` is 0 for the one in force."""

    text: str
    until_ms: int = 0


def new_secret(identity: Identity) -> str:
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
    """The three headers of one attempt."""
    moment = datetime.fromtimestamp(now_ms // 1000, UTC)
    valid = [each for each in secrets if not each.until_ms or each.until_ms > now_ms]
    text = body.decode("utf-8", errors="surrogateescape")
    signatures = [Webhook(each.text).sign(message_id, moment, text) for each in valid]
    return (
        ("webhook-id", message_id),
        ("webhook-timestamp", str(now_ms // 1000)),
        ("webhook-signature", " ".join(signatures)),
    )
