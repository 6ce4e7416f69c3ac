"""Why a shard, or a subscription as a whole, does not get on."""

from __future__ import annotations

from waystation.subscriptions.explanation import Explanation, Question
from waystation.subscriptions.hindrances import Hindrances
from waystation.subscriptions.overview import Overview


class ShardReasons:
    """Explains shards."""

    def __init__(self, hindrances: Hindrances, overview: Overview) -> None:
        self._hindrances = hindrances
        self._overview = overview

    async def whole(self, asked: Question) -> Explanation:
        """All of a subscription: the first shard that is held up, or how it stands."""
        standing = await self._overview.of(asked.subscription.project, asked.subscription.name)
        for row in standing.shards:
            if row.reason:
                found = await self.hindered(asked, row.shard, heads=False)
                if found is not None:
                    alike = [each.shard for each in standing.shards if each.reason == row.reason]
                    found.facts |= {"shards": alike, "lag": standing.lag}
                    return found
        facts = {each: getattr(standing, each) for each in ("lag", "retry", "dead", "parked")}
        text = (
            f"It delivers: {standing.lag:,} messages are before it, {standing.retry:,} wait in"
            f" retry, {standing.dead:,} are dead letters, {standing.parked:,} groups are parked."
        )
        return asked.answer("running", text, **facts)

    async def shard(self, asked: Question, shard: int) -> Explanation:
        """One shard."""
        found = await self.hindered(asked, shard, heads=False)
        if found is not None:
            return found
        look = await self._overview.look(asked.subscription, shard)
        backlog = await self._overview.backlog(asked.around, shard, look)
        assert look is not None, "one that is not there is hindered"
        text = f"Node {look.owner} delivers it; {backlog.messages:,} messages are before it."
        return asked.answer(
            "running",
            text,
            shard=shard,
            owner=look.owner,
            lag=backlog.messages,
            retry=look.retry_count,
            dead=look.dead_count,
            parked=look.parked,
        )

    async def hindered(self, asked: Question, shard: int, *, heads: bool) -> Explanation | None:
        """What keeps a shard from delivering; None: nothing does, or not what is in retry."""
        look = await self._overview.look(asked.subscription, shard)
        found = await self._hindrances.of(asked.around, shard, look)
        if found is None or (heads and not found.heads):
            return None
        facts = {**found.facts, "shard": shard}
        if found.code == "barrier":
            behind = await self._behind_barrier(asked)
            if not behind:
                text = f"{found.text} All shards have come so far."
                return asked.answer("inconsistent_shards", text, **facts)
            facts["behind"] = behind
        return asked.answer(found.code, found.text, **facts)

    async def _behind_barrier(self, asked: Question) -> list[int]:
        """Shards that have not come to it."""
        behind = []
        for shard in range(asked.subscription.shards):
            look = await self._overview.look(asked.subscription, shard)
            if look is None or (
                await self._hindrances.barrier_of(asked.around, shard, look) is None
            ):
                behind.append(shard)
        return behind
