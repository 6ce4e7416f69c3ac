"""Producing: routes messages to partitions, and keeps their order over a switch.

Each partition has a lane: one append is under way, and what comes meanwhile goes with the next, all
of it in one call. So many small requests cost few calls, and a later message can never be before an
earlier one of its group, whatever happens to a call. When a seal refuses a call, its messages stay
at the front of their lane; once all lanes have stopped, all that they have goes to the next storage
topic in its order, and only then whatever came later.

Callers may give up: what they handed over is produced without them.
"""

from __future__ import annotations

from collections.abc import Sequence

from waystation.config import Durability
from waystation.logs.protocol import Logs
from waystation.messages.envelope import Envelope, pack
from waystation.topics.dedup import Deduplication
from waystation.topics.flow import Backlog, Flow
from waystation.topics.lane import Batch, Receipt, Result, Routed
from waystation.topics.router import hash_of
from waystation.topics.service import Topics

__all__ = ["Producer", "Receipt", "Result"]

_FLOWS_MAX = 10_000


class Producer:
    """Produces to all topics."""

    def __init__(
        self,
        topics: Topics,
        logs: Logs,
        deduplication: Deduplication,
        *,
        durability: Durability = "memory",
    ) -> None:
        self._topics = topics
        self._logs = logs
        self._deduplication = deduplication
        self._durability: Durability = durability
        self._flows: dict[tuple[str, str], Flow] = {}
        self._backlog = Backlog()

    async def produce(self, project: str, name: str, envelopes: Sequence[Envelope]) -> list[Result]:
        """Produces messages in their order; each has a receipt or an error of its own."""
        if not envelopes:
            return []
        batch = self.begin(project, name, envelopes)
        await batch.done
        return batch.results()

    def begin(self, project: str, name: str, envelopes: Sequence[Envelope]) -> Batch:
        """Takes messages over, at least one. Who lets go of them now keeps memory for others."""
        batch = Batch(len(envelopes))
        messages = [
            Routed(
                batch,
                position,
                each.id,
                each.group,
                each.headers,
                hash_of(each.id if each.group is None else each.group),
                pack(each),
            )
            for position, each in enumerate(envelopes)
        ]
        self._flow(project, name).take(messages)
        return batch

    def _flow(self, project: str, name: str) -> Flow:
        flow = self._flows.get((project, name))
        if flow is None:
            if len(self._flows) >= _FLOWS_MAX:
                self._flows = {key: each for key, each in self._flows.items() if each.busy}
            flow = Flow(
                self._topics,
                self._logs,
                self._deduplication,
                project,
                name,
                durability=self._durability,
                backlog=self._backlog,
            )
            self._flows[project, name] = flow
        return flow
