"""Why a group, or the head of one, is where it is."""

from __future__ import annotations

from typing import Any

from waystation.runtime.clock import utc_text
from waystation.subscriptions.explanation import Explanation, Question, because
from waystation.subscriptions.looks import GroupLook, SingleLook
from waystation.subscriptions.overview import Overview
from waystation.subscriptions.record import RetryRecord
from waystation.subscriptions.selecting import Selecting
from waystation.subscriptions.states import GroupState
from waystation.subscriptions.why_shard import ShardReasons


class GroupReasons:
    """Explains groups."""

    def __init__(self, selecting: Selecting, overview: Overview, shards: ShardReasons) -> None:
        self._selecting = selecting
        self._overview = overview
        self._shards = shards

    async def group(self, asked: Question, group: str) -> Explanation:
        """A group; what is the matter with its head is the matter with all of it."""
        shard, look = await self._selecting.group(asked.subscription, group)
        if look.state is not GroupState.CLEAN:
            return await self.head(asked, shard, group, look)
        found = await self._shards.hindered(asked, shard, heads=False)
        if found is not None:
            return found
        text = "Nothing of the group waits: its messages go to the endpoint as they come."
        return asked.answer("clean", text, group=group, shard=shard)

    async def head(self, asked: Question, shard: int, group: str, look: GroupLook) -> Explanation:
        """The head of a group that is not clean, or the group itself."""
        behind = look.retry + look.dead - 1
        facts = {"group": group, "shard": shard, "behind": behind}
        if look.head is not None:
            facts |= asked.told(look.head)
        # Of some the rest is still to follow into dead letters: nothing of them is attempted.
        if look.state is GroupState.PARKED or look.failed_ms:
            text = (
                f"The group is parked since {utc_text(look.failed_ms)}"
                f"{because(look.head)}; {behind:,} messages wait behind its head."
            )
            return asked.answer("parked", text, **facts, failed_ms=look.failed_ms)
        redriving = look.state is GroupState.REDRIVING
        single = SingleLook(
            tries=look.tries,
            due_ms=look.due_ms,
            taken=look.taken,
            operation=look.operation if redriving else "",
        )
        return await self.due(asked, shard, facts, look.head, single, redriving=redriving)

    async def due(
        self,
        asked: Question,
        shard: int,
        facts: dict[str, Any],
        record: RetryRecord | None,
        single: SingleLook,
        *,
        redriving: bool,
    ) -> Explanation:
        """What waits for its time, or is under way."""
        tries, due_ms, operation = single.tries, single.due_ms, single.operation
        most = asked.subscription.options.retry.attempts + 1
        facts = {**facts, "attempt": tries + 1, "attempts_max": most, "due_ms": due_ms}
        if single.taken:
            text = f"Attempt {tries + 1} of {most} is under way."
            return asked.answer("under_way", text, **facts, operation=operation)
        look = await self._overview.look(asked.subscription, shard)
        if look is None or due_ms <= look.now_ms:
            found = await self._shards.hindered(asked, shard, heads=True)
            if found is not None:
                found.facts = facts | found.facts
                return found
        if redriving:
            text = f"It is redriven: attempt {tries + 1} of {most} at {utc_text(due_ms)}."
            return asked.answer("redriving", text, **facts, operation=operation)
        if record is not None and record.due_ms and record.due_ms == due_ms and not tries:
            text = f"It is to be delivered at {utc_text(due_ms)}."
            return asked.answer("delayed_until", text, **facts)
        text = f"Attempt {tries + 1} of {most} is at {utc_text(due_ms)}{because(record)}."
        return asked.answer("retrying_at", text, **facts)

    def behind(
        self, asked: Question, shard: int, group: str, look: GroupLook, *, ahead: int
    ) -> Explanation:
        """A message that is not the head of its group."""
        assert look.head is not None
        head = asked.told(look.head)
        text = (
            f"It waits behind others of its group {group[:80]!r}, which is {look.state}; the"
            f" first of them is {head['id']!r}{because(look.head)}."
        )
        facts = {"group": group, "shard": shard, "state": look.state.value, "head": head}
        return asked.answer("waiting_behind", text, **facts, ahead=ahead)
