"""Steps of operations: what one does in a shard, and what a dry run of all of them counts."""

from __future__ import annotations

from waystation.runtime.clock import Clock
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.looks import DeadLetter
from waystation.subscriptions.names import Place
from waystation.subscriptions.operating import STEP_MAX, Operating, PurgeStep, Stepped
from waystation.subscriptions.operation import Kept, Operation, Plan
from waystation.subscriptions.states import OperationState
from waystation.subscriptions.subscriptions import Subscriptions

_SAMPLE_MAX = 10
#: The id of what is none.
_DRY = "dry"


class Stepping:
    """Takes one step after the other."""

    def __init__(self, subscriptions: Subscriptions, operating: Operating, *, clock: Clock) -> None:
        self._subscriptions = subscriptions
        self._operating = operating
        self._clock = clock

    async def step(self, place: Place, kept: Kept, cursor: str, most: int) -> Stepped:
        """Marks or settles about so many messages; a step that was done before does nothing."""
        plan = kept.plan
        if plan.asked.kind == "skip":
            await self._operating.skip(place, kept.id, plan.group, plan.head)
            return Stepped(0, 0, "", [])
        # What fails after its beginning is not its own: it would meet again what fails again.
        bound = kept.begun_ms + 1
        before = min(plan.asked.failed_before_ms or bound, bound)
        return await self._select(place, plan, kept.id, cursor, most=most, before_ms=before)

    async def count(self, subscription: Subscription, plan: Plan) -> Operation:
        """A dry run: the same selection, and nothing is written."""
        groups = messages = 0
        sample: list[DeadLetter] = []
        asked = plan.asked
        if asked.to is not None:
            messages = await self._subscriptions.construction.behind(subscription, asked.to)
        elif asked.kind == "skip":
            groups = messages = 1
        else:
            bound = {"most": STEP_MAX, "before_ms": asked.failed_before_ms}
            for shard in plan.shards(subscription.shards):
                place, cursor, more = subscription.place(shard), "", True
                while more:
                    found = await self._select(place, plan, _DRY, cursor, **bound)
                    groups, messages = groups + found.groups, messages + found.messages
                    sample += found.sample
                    cursor, more = found.cursor, bool(found.cursor)
        return Operation(
            id="",
            asked=asked,
            state=OperationState.DONE,
            begun_ms=self._clock.now_ms(),
            count=messages,
            matched=groups,
            sample=sample[:_SAMPLE_MAX],
        )

    async def _select(
        self, place: Place, plan: Plan, operation: str, cursor: str, *, most: int, before_ms: int
    ) -> Stepped:
        # A redrive selects as a purge does.
        step = PurgeStep(
            operation=operation,
            group=plan.group,
            upto=plan.number,
            failed_after_ms=plan.asked.failed_after_ms,
            failed_before_ms=before_ms,
            cursor=cursor,
            most=most,
            dry_run=plan.asked.dry_run,
        )
        work = self._operating.purge if plan.asked.kind == "purge" else self._operating.redrive
        return await work(place, step)
