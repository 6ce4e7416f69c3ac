"""The scripts that reach a transaction from outside, and those that time calls for.

None of them needs to hold a transaction. An unknown one, or one of another project, is told as such
and leaves nothing behind; what has ended does not change any more. What is in the archive alone is
loaded and brought back, and then reached like any other; without a loader it is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from waystation.errors import (
    NotSleepingError,
    StoreFullError,
    SwitchInvalidError,
    TransactionFinalError,
    TransactionLoadingError,
    TransactionUnknownError,
)
from waystation.store.client import Store
from waystation.store.connection import Reply
from waystation.store.scripts import Script, script
from waystation.transactions import names
from waystation.transactions.cells import BATCH_MAX, Terms
from waystation.transactions.found import Found, found_of, read_found
from waystation.transactions.held import Due
from waystation.transactions.reply_lanes import ReplyNote
from waystation.transactions.restoring import GONE, Loaded, Loads, Missing
from waystation.transactions.states import Status
from waystation.transactions.switches import (
    SWITCHES_MAX,
    Scalar,
    check_switch,
    encode_value,
    parse_switches,
)

_CANCEL = script(__package__, "cancel")
_EXPIRE = script(__package__, "expire")
_GET = script(__package__, "get")
_LOOK = script(__package__, "look")
_MARK = script(__package__, "mark")
_NOTE_REPLY = script(__package__, "note_reply")
_REPLIED = script(__package__, "replied")
_SWEEP = script(__package__, "sweep")
_SWITCH = script(__package__, "switch")
_WAKE = script(__package__, "wake")
_WAKE_DUE = script(__package__, "wake_due")

#: How far into a queue a look for a place goes: a look must not block the store.
PLACES_MAX = 10_000
#: How often a state is loaded for one call; beyond that others are at it all the time.
LOADS_MAX = 3
#: When what is missing is looked at again where nobody has time to load it now.
_BUSY_MS = 1_000
#: Letters of what is noted about a webhook.
_COMMENT_MAX = 500


class Switched(msgspec.Struct, frozen=True):
    """What setting a switch has done."""

    outcome: Literal["nochange", "updated", "woken"]
    #: All switches of the transaction, by name.
    switches: dict[str, Scalar]


class Cancelled(msgspec.Struct, frozen=True):
    """What a cancel has done; `asked` ends with the next commit, or after the grace time."""

    outcome: Literal["cancelled", "asked", "known", "final", "unknown"]
    #: Of one that is complete.
    status: Status | None


_UNKNOWN = Cancelled("unknown", None)


class Replied(msgspec.Struct, frozen=True):
    """What is known once a long poll tells the end; `alive`: there is none to tell."""

    outcome: Literal["done", "known", "alive"]
    version: int
    #: When its client was told first.
    notified_ms: int | None


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """When the first of each kind is due, by the store's clock; None where there is none."""

    now_ms: int
    sleeping_ms: int | None
    lease_ms: int | None
    deadline_ms: int | None
    sweep_ms: int | None
    #: When archiving of the first is due.
    archive_ms: int | None


class Signals:
    """Reaches transactions that others hold, or nobody."""

    def __init__(self, store: Store, terms: Terms, loader: Loads | None = None) -> None:
        self._store = store
        self._terms = terms
        self._loader = loader

    # -- From outside ------------------------------------------------------------------------

    async def set_switch(
        self, owner: str, transaction_id: str, name: str, value: Scalar | None
    ) -> Switched:
        """Sets a switch, or deletes it; wakes the step that waits for it."""
        text = "-" if value is None else encode_value(value)
        cell, name = names.cell_of(transaction_id), check_switch(name)
        words = (self._terms.argument, owner, transaction_id, name, text, SWITCHES_MAX)
        outcome, _, kept = await self.reach(_SWITCH, cell, words)
        if outcome == b"too-many":
            raise SwitchInvalidError(
                f"The transaction has {SWITCHES_MAX} switches, and may not have more.",
                field="switch",
            )
        _raise_gone(outcome, transaction_id)
        return Switched(outcome.decode(), parse_switches(kept))

    async def cancel(
        self, owner: str, ids: Sequence[str], *, cause: str, grace_ms: int
    ) -> list[Cancelled]:
        """Cancels transactions of one cell: at once, or at the next commit."""
        if not ids:
            return []
        cell, told, left = _cell_of_all(ids), [_UNKNOWN] * len(ids), list(range(len(ids)))
        words = (self._terms.argument, owner, cause, grace_ms)
        for _ in range(LOADS_MAX + 1):
            reply = await self._run(_CANCEL, cell, *words, *(ids[i] for i in left))
            missing = {}
            for i, outcome, word in zip(left, reply[::2], reply[1::2], strict=True):
                if outcome == b"missing":
                    missing[i] = Missing(ids[i], word.decode())
                else:
                    told[i] = Cancelled(outcome.decode(), _status(word))
            loaded = await self._bring(owner, list(missing.values()))
            left = [i for i in missing if ids[i] in loaded]
            if not left:
                return told
            _raise_no_room(loaded)
        raise _loading(ids[left[0]])

    async def wake(self, owner: str, transaction_id: str) -> None:
        """Wakes what sleeps, before its time."""
        cell = names.cell_of(transaction_id)
        words = (self._terms.argument, owner, transaction_id)
        outcome, state = await self.reach(_WAKE, cell, words)
        _raise_gone(outcome, transaction_id)
        if outcome == b"not-sleeping":
            raise NotSleepingError(state=state.decode())

    async def get(
        self,
        owner: str,
        ids: Sequence[str],
        *,
        places: bool = False,
        load: bool = True,
        renew: bool = False,
    ) -> list[Found | None]:
        """Reads transactions of one cell; None for one that is unknown.

        What is in the archive alone is brought back with `load`; where there is no room for it in
        the store, it is told as the archive has it. With `renew` what is in the store for a while
        stays for as long again.
        """
        if not ids:
            return []
        cell, found, left = _cell_of_all(ids), dict[str, Found | None](), list(ids)
        far, stay_ms = PLACES_MAX if places else 0, self._terms.cache_ms if renew else 0
        words: tuple[str | int, ...]
        words = (owner, far, stay_ms, "load" if load and self._loader is not None else "")
        for _ in range(LOADS_MAX + 1):
            missing = []
            for each, reply in zip(left, await self._run(_GET, cell, *words, *left), strict=True):
                if len(reply) == 1:
                    missing.append(Missing(each, reply[0].decode()))
                else:
                    found[each] = read_found(each, reply) if reply else None
            loaded = await self._bring(owner, missing)
            rows = {key: each.row for key, each in loaded.items() if each.outcome == "no-room"}
            found |= {key: found_of(row) for key, row in rows.items() if row is not None}
            found |= {each.id: None for each in missing if each.id not in loaded}
            left = [key for key in loaded if key not in rows]
            if not left:
                return [found[each] for each in ids]
        raise _loading(left[0])

    async def mark(self, ids: Sequence[str], *, wait_ms: int) -> None:
        """Says that somebody waits for the ends of transactions of one cell.

        Look at them afterwards: what had ended before is not told any more.
        """
        if ids:
            await self._run(_MARK, _cell_of_all(ids), wait_ms, *ids)

    async def has_room(self, cell: int) -> bool:
        """Whether the store lets anything begin; what is under way goes on without room, too."""
        try:
            await self._run(_MARK, cell, 0)
        except StoreFullError:
            return False
        return True

    # -- By time -----------------------------------------------------------------------------

    async def wake_due(self, cell: int, *, most: int = BATCH_MAX, loads: int = 0) -> Due:
        """Queues what has slept long enough; gives out up to `loads` that are to be loaded."""
        words = (min(most, BATCH_MAX), self._terms.load_ms, loads, _BUSY_MS)
        return _due(await self._run(_WAKE_DUE, cell, self._terms.argument, *words))

    async def expire(
        self, cell: int, *, grace_ms: int, most: int = BATCH_MAX, loads: int = 0
    ) -> Due:
        """Ends what is over its deadline, or over the grace time of its cancel."""
        words = (grace_ms, min(most, BATCH_MAX), self._terms.load_ms, loads, _BUSY_MS)
        return _due(await self._run(_EXPIRE, cell, self._terms.argument, *words))

    async def sweep(self, cell: int, *, grace_ms: int, lost: Sequence[str] = ()) -> Due:
        """Cancels children that nobody waits for, 100 at a time; passes over what is `lost`.

        What is missing holds up the children behind it until it is loaded, or known to be lost.
        """
        words = (self._terms.argument, grace_ms, _BUSY_MS)
        return _due(await self._run(_SWEEP, cell, *words, *lost))

    async def look(self, cell: int) -> Look:
        """When something is due."""
        now, *times = await self._run(_LOOK, cell)
        sleeping, lease, deadline, sweep, archive = map(_time, times)
        return Look(
            now_ms=int(now),
            sleeping_ms=sleeping,
            lease_ms=lease,
            deadline_ms=deadline,
            sweep_ms=sweep,
            archive_ms=archive,
        )

    async def reach(self, verb: Script, cell: int, words: tuple[str | bytes | int, ...]) -> Reply:
        """Runs a script that is about `words[2]`, of owner `words[1]`, once it is in the store."""
        owner, transaction_id = str(words[1]), str(words[2])
        for _ in range(LOADS_MAX + 1):
            reply = await self._run(verb, cell, *words)
            if reply[0] != b"missing":
                return reply
            loaded = await self._bring(owner, [Missing(transaction_id, reply[1].decode())])
            if not loaded:
                _raise_gone(b"unknown", transaction_id)
            _raise_no_room(loaded)
        raise _loading(transaction_id)

    async def _bring(self, owner: str, missing: Sequence[Missing]) -> dict[str, Loaded]:
        """Loads what is missing; what is not in the answer is unknown."""
        if self._loader is None or not missing:
            return {}
        loaded = await self._loader.bring(owner, missing)
        return {key: each for key, each in loaded.items() if each.outcome not in GONE}

    async def _run(self, verb: Script, cell: int, *words: str | bytes | int) -> Reply:
        return await self._store.run(verb, [names.log(cell)], words)

    # -- About replies -----------------------------------------------------------------------

    async def replied(self, owner: str, transaction_id: str) -> Replied:
        """Says that a long poll is about to tell the end; takes the webhook back if so asked."""
        words = (self._terms.argument, owner, transaction_id)
        cell = names.cell_of(transaction_id)
        outcome, version, told = await self.reach(_REPLIED, cell, words)
        _raise_gone(outcome, transaction_id)
        return Replied(outcome.decode(), int(version), _time(told))

    async def note_replies(self, cell: int, notes: Sequence[ReplyNote]) -> list[ReplyNote]:
        """Notes what became of webhooks of one cell; returns notes on what is not in the store."""
        assert len(notes) <= BATCH_MAX, "no loop in a script is longer"
        words = [self._terms.argument]
        for transaction_id, status, cause in notes:
            words += [transaction_id, status, cause[:_COMMENT_MAX]]
        outcomes = await self._run(_NOTE_REPLY, cell, *words)
        return [note for note, said in zip(notes, outcomes, strict=True) if said == b"missing"]


def _cell_of_all(ids: Sequence[str]) -> int:
    """The cell of ids that go into one call."""
    assert len(ids) <= BATCH_MAX, "no loop in a script is longer"
    cells = {names.cell_of(each) for each in ids}
    assert len(cells) == 1, "a call is of one cell"
    return cells.pop()


def _raise_gone(outcome: bytes, transaction_id: str) -> None:
    if outcome == b"unknown":
        raise TransactionUnknownError(f"There is no transaction {transaction_id}.")
    if outcome == b"final":
        raise TransactionFinalError(f"{transaction_id} has ended.")


def _raise_no_room(loaded: Mapping[str, Loaded]) -> None:
    if any(each.outcome == "no-room" for each in loaded.values()):
        raise StoreFullError("The store has no room to bring it back from the archive.")


def _loading(transaction_id: str) -> TransactionLoadingError:
    return TransactionLoadingError(f"{transaction_id} is being loaded by others. Try again.")


def _due(reply: Reply) -> Due:
    done, next_ms, *missing = reply
    pairs = zip(missing[::2], missing[1::2], strict=True)
    given = tuple(Missing(each.decode(), nonce.decode()) for each, nonce in pairs)
    return Due(int(done), int(next_ms), given)


def _status(word: bytes) -> Status | None:
    return None if word == b"-" else Status(word.decode())


def _time(score: bytes) -> int | None:
    return int(float(score)) if score else None
