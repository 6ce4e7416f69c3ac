"""What an audit says: what is wrong, by id, and what could not be looked at."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

#: Findings of one check that are told one by one; all are counted.
EXAMPLES_MAX = 20


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong."""

    #: What was looked for, in a word or two: `missing`, `doubled`, `overtaken`, …
    check: str
    #: Whose it is: a log, a subscription, a pipeline.
    subject: str
    #: Of the message or the transaction; empty where nobody knows it any more.
    id: str
    #: Of a message, or of an entry of a log.
    position: str
    text: str


class Findings(msgspec.Struct):
    """All that an audit found."""

    #: Check -> how many.
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    examples: list[Finding] = msgspec.field(default_factory=list)
    #: What is as it should be, but could not be checked, each a sentence.
    notes: list[str] = msgspec.field(default_factory=list)
    #: What was looked at -> how many.
    checked: dict[str, int] = msgspec.field(default_factory=dict)

    @property
    def total(self) -> int:
        """How many things are wrong."""
        return sum(self.counts.values())

    def add(self, check: str, count: int, examples: Iterable[Finding]) -> None:
        """Takes note of what a check found."""
        if not count:
            return
        self.counts[check] = self.counts.get(check, 0) + count
        told = sum(each.check == check for each in self.examples)
        self.examples += list(examples)[: EXAMPLES_MAX - told]

    def note(self, text: str) -> None:
        """Takes note of what could not be checked."""
        self.notes.append(text)

    def seen(self, what: str, count: int) -> None:
        """Counts what was looked at."""
        self.checked[what] = self.checked.get(what, 0) + count
