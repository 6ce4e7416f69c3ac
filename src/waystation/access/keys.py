"""API keys: `ws_<id>_<secret>`. The id is public, the secret is kept nowhere but with its user."""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum

from waystation.catalogue import KeyRecord
from waystation.runtime.ids import IdSource

_FORMAT = re.compile(r"ws_([0-9a-f]{16})_([0-9a-f]{48})", re.ASCII)


class Scope(StrEnum):
    """What a key may do. Each scope includes the ones before it."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"

    def included(self) -> frozenset[Scope]:
        """This scope and all lesser ones."""
        order = list(Scope)
        return frozenset(order[: order.index(self) + 1])


def new_key(
    identity: IdSource,
    *,
    project: str,
    scope: Scope,
    label: str,
    now_ms: int,
    expires_ms: int = 0,
) -> tuple[str, KeyRecord]:
    """Makes a key; returns its text, which is shown once, and the record to keep."""
    key_id, secret = identity.token(8), identity.token(24)
    record = KeyRecord(
        id=key_id,
        project=project,
        scopes=(scope.value,),
        secret_hash=hash_secret(secret),
        label=label,
        created_ms=now_ms,
        expires_ms=expires_ms,
    )
    return f"ws_{key_id}_{secret}", record


def split_key(text: str) -> tuple[str, str] | None:
    """Id and secret of a key; None when it is not in the form of one."""
    match = _FORMAT.fullmatch(text)
    return (match.group(1), match.group(2)) if match else None


def hash_secret(secret: str) -> bytes:
    """SHA-256 is enough: a secret has 192 random bits, there is nothing to guess."""
    return hashlib.sha256(secret.encode()).digest()
