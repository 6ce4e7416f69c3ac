"""Findings of an audit: errors with examples, and notes on what was not checked."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

#: Examples of one check. All findings are counted.
EXAMPLES_MAX = 20


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One error."""

    #: Name of the check: `missing`, `doubled`, `overtaken`, …
    check: str
    #: Log, subscription, channel or pool of the error.
    subject: str
    #: Id of the message or transaction; empty if it is unknown.
    id: str
    #: Position of the message or of the entry.
    position: str
    text: str


class Findings(msgspec.Struct):
    """Findings of one audit."""

    #: Number of findings, by check.
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    examples: list[Finding] = msgspec.field(default_factory=list)
    #: Sentences on what was not checked, and why.
    notes: list[str] = msgspec.field(default_factory=list)
    #: Number of checked messages, entries and transactions, by kind.
    checked: dict[str, int] = msgspec.field(default_factory=dict)

    @property
    def total(self) -> int:
        """Number of all findings."""
        return sum(self.counts.values())

    def add(self, check: str, count: int, examples: Iterable[Finding]) -> None:
        """Add findings of a check."""
        if not count:
            return
        self.counts[check] = self.counts.get(check, 0) + count
        listed = sum(each.check == check for each in self.examples)
        self.examples += list(examples)[: EXAMPLES_MAX - listed]

    def note(self, text: str) -> None:
        """Add a note."""
        self.notes.append(text)

    def seen(self, kind: str, count: int) -> None:
        """Add to the number of checked messages, entries or transactions of a kind."""
        self.checked[kind] = self.checked.get(kind, 0) + count
