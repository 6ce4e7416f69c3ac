"""The columns of a state, in the order of its fields, and rows made into what they stand for."""

from __future__ import annotations

from typing import Any

import msgspec

from waystation.archive.protocol import ArchivedFacts, ArchivedState

FACTS = tuple(field.name for field in msgspec.structs.fields(ArchivedFacts))
COLUMNS = tuple(field.name for field in msgspec.structs.fields(ArchivedState))
TYPES = tuple(field.type for field in msgspec.structs.fields(ArchivedState))

#: How an upsert changes a row that is there, if it does.
ASSIGNMENTS = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS[1:])


def facts_of(row: tuple[Any, ...]) -> ArchivedFacts:
    """A row of FACTS."""
    return ArchivedFacts(**dict(zip(FACTS, row, strict=True)))


def state_of(row: tuple[Any, ...]) -> ArchivedState:
    """A row of COLUMNS."""
    return ArchivedState(**dict(zip(COLUMNS, row, strict=True)))
