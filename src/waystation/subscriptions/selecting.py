"""What an operation is about: which shard has the group or the message, and where it is there."""

from __future__ import annotations

from collections.abc import Sequence

from waystation.errors import GroupCleanError, InvalidInputError, NotParkedError
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.looking import Looking
from waystation.subscriptions.looks import Found, GroupLook
from waystation.subscriptions.operation import Asked, Plan
from waystation.subscriptions.shards import shards_of_key
from waystation.subscriptions.states import GroupState, MessageState
from waystation.subscriptions.subscriptions import Subscriptions


class Selecting:
    """Decides once, when an operation begins."""

    def __init__(self, subscriptions: Subscriptions, looking: Looking) -> None:
        self._subscriptions = subscriptions
        self._looking = looking

    async def plan(self, subscription: Subscription, asked: Asked) -> Plan:
        """What is to be done; NotParkedError or GroupCleanError if there is nothing of that."""
        if asked.kind == "reset":
            assert asked.to is not None
            await self._subscriptions.check_reset(subscription, asked.to)
            return Plan(asked=asked, incarnation=subscription.incarnation + 1)
        if asked.message:
            return await self._message(subscription, asked)
        if not asked.group:
            return Plan(asked=asked)
        shard, look = await self.group(subscription, asked.group)
        if asked.kind == "redrive" and not look.dead:
            raise NotParkedError(f"Group {asked.group[:80]!r} has no dead letters.")
        if look.state is GroupState.CLEAN:
            raise GroupCleanError(f"Group {asked.group[:80]!r} is clean: nothing of it waits.")
        head = look.head_name if asked.kind == "skip" else ""
        return Plan(asked=asked, shard=shard, group=asked.group, head=head)

    async def group(self, subscription: Subscription, group: str) -> tuple[int, GroupLook]:
        """The shard of a group, and how that sees it; the one where something of it waits."""
        owners = await self.shards(subscription, group)
        for shard in owners:
            look = await self._looking.group(subscription.place(shard), group)
            if look.state is not GroupState.CLEAN:
                return shard, look
        return owners[0], GroupLook(state=GroupState.CLEAN)

    async def shards(self, subscription: Subscription, group: str) -> Sequence[int]:
        """The shards where something of a group may be, the likeliest first."""
        topic = await self._subscriptions.topic_of(subscription)
        spreads = [each.router for each in topic.storage] if topic else []
        # A topic that is gone tells no shard: what is left of it may be anywhere.
        return shards_of_key(group, spreads, subscription.shards) or range(subscription.shards)

    async def _message(self, subscription: Subscription, asked: Asked) -> Plan:
        for shard in range(subscription.shards):
            found = await self._looking.find(
                subscription.place(shard), asked.message, group=asked.group
            )
            if found is not None:
                return _of_message(asked, shard, found)
        raise _not_dead(asked.message)


def _of_message(asked: Asked, shard: int, found: Found) -> Plan:
    if found.queue != "dead":
        raise _not_dead(asked.message)
    alone = found.state is MessageState.ALONE
    if asked.kind == "purge" and not alone:
        raise InvalidInputError(
            f"Message {asked.message[:80]!r} has others of its group behind it or before it.",
            field="message",
            hint="Purge the group, or skip its head.",
        )
    group = "" if alone else found.record.group
    return Plan(asked=asked, shard=shard, group=group, number=found.number)


def _not_dead(message: str) -> NotParkedError:
    return NotParkedError(f"Message {message[:80]!r} is not among the dead letters.")
