"""One row of the catalogue of keys."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class KeyKind:
    """What a kind of key is called, holds, and when it goes."""

    pattern: str
    type: str
    content: str
    writer: str
    dies: str
