"""What operators do to a shard: redrive, skip, purge, reset; and what such an operation notes.

None of it needs the shard's epoch: it runs beside the owner, and leads towards clean, whatever the
owner knows; a commit for what was settled here is `known`. While a shard is frozen all of it raises
ShardFrozenError. An operation goes over a shard in steps. Each writes where it came to together
with what it did, so a step whose reply was lost, or that two take at once, is done once.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from waystation.store.client import Store
from waystation.store.connection import Reply
from waystation.store.scripts import script
from waystation.subscriptions.looks import DeadLetter
from waystation.subscriptions.names import Place
from waystation.subscriptions.refusals import check
from waystation.subscriptions.shard_pages import letter_of
from waystation.subscriptions.terms import Terms, anyone

_REDRIVE = script(__package__, "redrive")
_SKIP = script(__package__, "skip")
_PURGE = script(__package__, "purge")
_ENLIST = script(__package__, "enlist")
_PROGRESS = script(__package__, "progress")
_RESET = script(__package__, "reset")
_FREEZE = script(__package__, "freeze")
_THAW = script(__package__, "thaw")

#: Messages that one step settles; a loop in a script is never longer.
STEP_MAX = 200
#: What the scripts note of an operation, beside what is asked and the notes of its driver.
WORDS = ("cursor", "groups", "marked", "settled", "parked_again", "open")


class RedriveStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of an operation: which dead letters."""

    #: Its id; no colon, no blank.
    operation: str
    #: One group; empty: all.
    group: str = ""
    #: Of a group: those up to this number; None: all, and what comes behind them meanwhile.
    #: Without a group: the one dead letter that stands alone under this number.
    upto: int | None = None
    #: When the head failed, by the store's clock.
    failed_after_ms: int = 0
    #: Exclusive; the operation's start, or it would meet again what fails again. 0: whenever.
    failed_before_ms: int
    #: What the last step returned.
    cursor: str = ""
    #: Messages after which no further group is begun.
    most: int = STEP_MAX
    #: Counts and samples, and writes nothing.
    dry_run: bool = False


class PurgeStep(RedriveStep, frozen=True, kw_only=True):
    """The same of a purge; a named group may be in any state, and goes as a whole."""


class Stepped(msgspec.Struct, frozen=True):
    """What a step has done, or in a dry run would do; a step that was done before counts nothing.

    Of a prefix up to 1,000 messages are counted.
    """

    #: And dead letters that stand alone.
    groups: int
    messages: int
    #: Where the next step goes on; empty: at the end.
    cursor: str
    #: Of a dry run, the first ones.
    sample: list[DeadLetter]


class Operating:
    """Runs the scripts of operations."""

    def __init__(self, store: Store, *, dataset: str) -> None:
        self._store = store
        self._terms = anyone(dataset).argument

    async def redrive(self, place: Place, step: RedriveStep) -> Stepped:
        """Makes dead letters due. A group that is redriven already is passed over."""
        return _stepped(check(await self._store.run(_REDRIVE, *self._step(place, step)), place))

    async def purge(self, place: Place, step: PurgeStep) -> Stepped:
        """Settles dead letters, and what is in retry behind them, as purged."""
        return _stepped(check(await self._store.run(_PURGE, *self._step(place, step)), place))

    async def skip(self, place: Place, operation: str, group: str, head: str) -> str:
        """Settles the head of a group, named as in `GroupLook.head_name`; the rest is due.

        `done` (also when this operation had done it before); `known`: its head is another one;
        `clean`: it has none.
        """
        _check_name(operation)
        arguments = (self._terms, operation, group, head)
        reply: list[Reply] = check(await self._store.run(_SKIP, [place.log], arguments), place)
        return str(reply[0].decode())

    async def reset(self, place: Place, incarnation: int, to: Mapping[str, int]) -> bool:
        """Goes on at other positions, in a new incarnation; its owner is none any more.

        False: the shard is in that incarnation already, or in a later one. Partitions that are
        not given stay where they are; so do retry and dead letters.
        """
        words = [word for pair in to.items() for word in pair]
        arguments: list[str | int] = [self._terms, incarnation, *words]
        reply = check(await self._store.run(_RESET, [place.log], arguments), place)
        return bool(reply[0])

    async def freeze(self, place: Place, why: str) -> bool:
        """Stops all that writes to a shard; false where it is frozen already."""
        assert why, "somebody will ask"
        reply = check(await self._store.run(_FREEZE, [place.log], (self._terms, why)), place)
        return bool(reply[0])

    async def thaw(self, place: Place) -> bool:
        """Lets a frozen shard go on; false where it is not frozen."""
        reply = check(await self._store.run(_THAW, [place.log], (self._terms,)), place)
        return bool(reply[0])

    # -- Progress ----------------------------------------------------------------------------

    async def enlist(self, place: Place, operation: str, asked: bytes) -> bool:
        """Tells a shard of an operation, and its owner by the hint; false: it knows it."""
        _check_name(operation)
        arguments = (self._terms, operation, asked)
        reply = check(await self._store.run(_ENLIST, [place.log], arguments), place)
        return bool(reply[0])

    async def progress(
        self,
        place: Place,
        terms: Terms,
        operation: str,
        notes: Mapping[str, str],
        *,
        cursor: str | None = None,
    ) -> bool:
        """Notes of an operation's driver, who owns the shard.

        False: the shard does not know the operation, or it is not at that cursor any more.
        """
        _check_name(operation)
        words = [word for pair in notes.items() for word in pair]
        assert words, "nothing to note"
        assert not set(notes) & set(WORDS), "the scripts write these themselves"
        at = "*" if cursor is None else cursor
        arguments = (terms.argument, operation, at, *words)
        reply = check(await self._store.run(_PROGRESS, [place.log], arguments), place)
        return bool(reply[0])

    async def forget(self, place: Place, operation: str, notes: tuple[str, ...] = ()) -> None:
        """Takes off all that a shard has noted of an operation."""
        _check_name(operation)
        fields = (f"{operation}:{word}" for word in (*WORDS, *notes))
        await self._store.call("HDEL", place.key("ops"), operation, *fields)

    def _step(self, place: Place, step: RedriveStep) -> tuple[list[str], list[str | int]]:
        _check_name(step.operation)
        assert step.most > 0, "a step that does nothing never ends"
        arguments: list[str | int] = [
            self._terms,
            step.operation,
            step.group,
            "-" if step.upto is None else step.upto,
            step.failed_after_ms,
            step.failed_before_ms,
            step.cursor,
            min(step.most, STEP_MAX),
            int(step.dry_run),
        ]
        return [place.log], arguments


def _check_name(operation: str) -> None:
    """Its id is a word of entries, and the beginning of fields."""
    assert operation not in ("", "0"), "not the id of an operation"
    assert not set(operation) & set(" :"), "not the id of an operation"


def _stepped(reply: list[Reply]) -> Stepped:
    sample = [letter_of(*reply[i : i + 4]) for i in range(3, len(reply), 4)]
    return Stepped(int(reply[0]), int(reply[1]), reply[2].decode(), sample)
