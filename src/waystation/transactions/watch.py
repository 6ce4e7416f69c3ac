"""The watch: sees when nobody archives, when nobody sends webhooks, and what was set aside.

Every process looks now and then, and notes what it sees for whoever asks whether it is ready. An
operator is told once an hour, by whoever is first: of several who see the same, one.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import cast

import msgspec

from waystation.delivery.notices import Kind, Notice, Notices
from waystation.delivery.sender import Sender
from waystation.errors import BusyError, StoreError
from waystation.runtime.clock import Clock
from waystation.runtime.service import Service
from waystation.store.client import Store
from waystation.store.connection import Reply
from waystation.telemetry import metrics
from waystation.transactions import names
from waystation.transactions.nodes import Nodes
from waystation.transactions.signals import Signals

LOOK_SECONDS = 30.0
#: What is so late is waited for by nobody, or in vain.
LATE_MS = 300_000
TOLD_MS = 3_600_000
#: Cells of one write.
_STEP = 250


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """What waits to be archived or sent, in all cells."""

    #: Scheduled to be archived, due or not.
    waiting: int = 0
    #: How late the first of them is.
    late_ms: int = 0
    #: Refused by the archive.
    set_aside: int = 0
    #: Receivers of replies with something that waits.
    lanes: int = 0


class Concern(msgspec.Struct, frozen=True, kw_only=True):
    """Something that an operator should know."""

    what: str
    kind: Kind
    #: Text of the alert.
    text: str
    #: Text for `/readyz`, which is public; empty if `text` contains nothing private.
    note: str = ""


class Watch(Service):
    """Checks archive and replies of all nodes, and alerts an operator once an hour."""

    #: A check may be cancelled anywhere. A cancelled alert is repeated by the next check.
    grace_s = 0.0

    def __init__(
        self,
        store: Store,
        signals: Signals,
        nodes: Nodes,
        sender: Sender,
        *,
        cells: int,
        clock: Clock,
        notice_url: str = "",
        archive_error: Callable[[], str] = lambda: "",
    ) -> None:
        super().__init__("watch", clock=clock)
        self._store = store
        self._signals = signals
        self._nodes = nodes
        self._notices = Notices(store, sender, begin=self.spawn, url=notice_url)
        self._cells = cells
        #: What this process has against the archive; empty if nothing.
        self._archive_error = archive_error
        self._concerns: list[Concern] = []

    @property
    def notes(self) -> list[str]:
        """What a person should know, as of the last look."""
        return [each.note or each.text for each in self._concerns]

    async def run(self) -> None:
        """Check every thirty seconds until the service stops."""
        await self.repeat(self._check, every_s=LOOK_SECONDS)

    async def count(self) -> None:
        """Tells figures for all nodes; a part of upkeep."""
        backlog = await self.backlog()
        metrics.archive_waiting.set(backlog.waiting)
        metrics.archive_oldest.set(backlog.late_ms / 1000)
        metrics.archive_set_aside.set(backlog.set_aside)

    @staticmethod
    def stop_counting() -> None:
        """Another node counts."""
        for gauge in (metrics.archive_waiting, metrics.archive_oldest, metrics.archive_set_aside):
            gauge.set(0)

    async def backlog(self) -> Backlog:
        """What waits now."""
        now_ms = (await self._signals.look(0)).now_ms
        found = [Backlog()]
        for first in range(0, self._cells, _STEP):
            cells = range(first, min(first + _STEP, self._cells))
            commands = [command for cell in cells for command in _looking(cell)]
            replies = await self._store.pipeline(commands, repeatable=True)
            found += [_backlog(replies[i : i + 4], now_ms) for i in range(0, len(replies), 4)]
        return Backlog(
            waiting=sum(each.waiting for each in found),
            late_ms=max(each.late_ms for each in found),
            set_aside=sum(each.set_aside for each in found),
            lanes=sum(each.lanes for each in found),
        )

    async def look(self) -> list[Concern]:
        """Looks once, and tells what nobody was told of lately."""
        backlog = await self.backlog()
        self._concerns = [each async for each in self._found(backlog)]
        for each in self._concerns:
            await self._tell_once(each)
        return self._concerns

    async def _check(self) -> None:
        await self.look()

    async def _found(self, backlog: Backlog) -> AsyncIterator[Concern]:
        late = backlog.late_ms > LATE_MS
        nodes = await self._nodes.all() if late or backlog.lanes else []
        if late:
            minutes = backlog.late_ms // 60_000
            error = ""
            if not any(each.archives for each in nodes):
                why = "no living node archives, since archive_batch is 0 for all of them"
            else:
                error = self._archive_error()
                why = error or "those who archive are slower than that"
            text = f"Transactions wait for {minutes} min to be archived: "
            # The error of a database names hosts and paths, and readiness is public.
            note = f"{text}the archive fails; the server log shows why." if error else ""
            yield Concern(what="archive", kind="unarchived", text=f"{text}{why}.", note=note)
        if backlog.lanes and not any(each.webhook_workers for each in nodes):
            text = f"Replies for {backlog.lanes} receivers wait, and no living node sends any."
            yield Concern(what="webhooks", kind="unsent", text=text)
        if backlog.set_aside:
            text = f"The archive refuses {backlog.set_aside} transactions; they were set aside."
            yield Concern(what="set-aside", kind="set-aside", text=text)

    async def _tell_once(self, concern: Concern) -> None:
        key = names.told(concern.what)
        # Before it is told: of two who tell, one would be too many. Who dies here is followed by
        # another after an hour; the note is there all the time.
        if not await self._store.call("SET", key, 1, "NX", "PX", TOLD_MS):
            return
        at_ms = self.clock.now_ms()
        notice = Notice(
            kind=concern.kind, endpoint=concern.what, lane="", cause=concern.text, at_ms=at_ms
        )
        try:
            await self._notices.tell(notice)
        except BaseException:
            with contextlib.suppress(StoreError, BusyError):
                await self._store.call("DEL", key, repeatable=True)
            raise


def _looking(cell: int) -> Iterator[tuple[str | int, ...]]:
    scheduled = names.sorted_set(cell, "toArchiveZ")
    yield "ZCARD", scheduled
    yield "ZRANGE", scheduled, 0, 0, "WITHSCORES"
    yield "HLEN", names.archive_failed(cell)
    yield "ZCARD", names.sorted_set(cell, "webhookLanesZ")


def _backlog(replies: Sequence[Reply | StoreError], now_ms: int) -> Backlog:
    """Of one cell."""
    for reply in replies:
        if isinstance(reply, StoreError):
            raise reply
    waiting, first, set_aside, lanes = cast("Sequence[Reply]", replies)
    late_ms = now_ms - int(float(first[1])) if first else 0
    return Backlog(waiting=waiting, late_ms=max(0, late_ms), set_aside=set_aside, lanes=lanes)
