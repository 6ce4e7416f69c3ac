"""Rows of the catalogue's tables, which all of its databases write and read alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from waystation.catalogue.protocol import DefinitionRecord, KeyRecord

KEY_COLUMNS = "id, project, scopes, secret_hash, label, created_ms, expires_ms, revoked_ms"
DEFINITION_COLUMNS = "kind, project, name, version, body, changed_ms"


def key_row(key: KeyRecord) -> tuple[object, ...]:
    """A key in the order of its columns."""
    return (
        key.id,
        key.project,
        " ".join(key.scopes),
        key.secret_hash,
        key.label,
        key.created_ms,
        key.expires_ms,
        key.revoked_ms,
    )


def key_of(row: Sequence[Any]) -> KeyRecord:
    """The key in a row."""
    return KeyRecord(
        id=row[0],
        project=row[1],
        scopes=tuple(row[2].split()),
        secret_hash=row[3],
        label=row[4],
        created_ms=row[5],
        expires_ms=row[6],
        revoked_ms=row[7],
    )


def definition_of(row: Sequence[Any]) -> DefinitionRecord:
    """The definition in a row."""
    kind, project, name, version, body, changed_ms = row
    return DefinitionRecord(
        kind=kind, project=project, name=name, version=version, body=body, changed_ms=changed_ms
    )
