"""Logs: ordered, partitioned, kept until nobody needs them; one protocol for every kind."""

from __future__ import annotations

from waystation.logs.protocol import (
    Appended,
    Block,
    Entry,
    Logs,
    LogState,
    Retention,
    Trimmed,
)

__all__ = ["Appended", "Block", "Entry", "LogState", "Logs", "Retention", "Trimmed"]
