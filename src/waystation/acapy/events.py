"""Events of agents: lists that the plugin writes, produced to topics, in their order.

An event is taken under a lease, produced under an id of its list and number, and only then let go
of: who dies in between produces it again under the same id, which a topic with deduplication knows.
One that a topic will never take is a dead letter beside its list; while a topic is missing, blocked
or over its limit, its events wait.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence

from waystation.acapy.outbound import OutboundQueue, TakenMessage
from waystation.acapy.retry_set import RetrySet
from waystation.config import EventRule
from waystation.delivery.claims import AWAY
from waystation.errors import InvalidInputError, WaystationError
from waystation.messages.envelope import Envelope
from waystation.runtime.logging import logger
from waystation.runtime.service import Wakeup
from waystation.store.client import Store
from waystation.store.pubsub import RECHECK_S
from waystation.topics.producer import CheckedProducer

_log = logger("events")

_POLL_SECONDS = 0.2
#: Before a topic that takes nothing is asked again.
_PAUSE_SECONDS = 5.0
_TAKE_MAX = 64
_LEASE_MS = 60_000
#: Ids and groups have 100 characters at most.
_NAME_MAX = 70
_JSON = (("content-type", "application/json"),)


class EventPump:
    """Produces one list to one topic, until it is stopped; any number may do so."""

    def __init__(self, store: Store, within: CheckedProducer, rule: EventRule) -> None:
        self._rule = rule
        self._within = within
        self._queue = OutboundQueue(store, rule.list)
        #: Events that were refused, each behind its id; redriven, they come through here again.
        self.refused = RetrySet(store, f"{rule.list}_refused")
        self._waiter = Wakeup(recheck_s=RECHECK_S)
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        long = len(rule.list) > _NAME_MAX
        #: What ids begin with, and the group of all: their order is that of the list.
        self._name = hashlib.sha256(rule.list.encode()).hexdigest() if long else rule.list

    def __repr__(self) -> str:
        return f"<EventPump {self._rule.list} to {self._rule.topic}>"

    async def start(self) -> None:
        """Begins to produce."""
        self._task = asyncio.get_running_loop().create_task(self._pump())

    async def stop(self) -> None:
        """Finishes what was taken."""
        self._stopping = True
        self._waiter.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_PAUSE_SECONDS)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _pump(self) -> None:
        while not self._stopping:
            self._waiter.clear()
            pause = _PAUSE_SECONDS
            try:
                pause = await self.step()
            except AWAY as error:
                _log.warning("events cannot be read", list=self._rule.list, problem=str(error))
            except Exception as error:
                _log.error("events broke", error=error, list=self._rule.list)
            if not self._stopping:
                await self._waiter.wait(pause)

    async def step(self) -> float:
        """Produces what there is; how long to wait before the next look."""
        for member in await self.refused.take(_TAKE_MAX, _LEASE_MS):
            event_id, _, raw = member.partition(b" ")
            if not await self._produce(raw, event_id.decode(), was=member):
                return _PAUSE_SECONDS
            await self.refused.done(member)
        taken = await self._queue.take(_TAKE_MAX, _LEASE_MS)
        for position, each in enumerate(taken):
            if not await self._produce(each.raw, f"{self._name}:{each.number}"):
                await self._give_back(taken[position:])
                return _PAUSE_SECONDS
            await self._queue.done(each.number)
        return 0.0 if taken else _POLL_SECONDS

    async def _produce(self, raw: bytes, event_id: str, *, was: bytes = b"") -> bool:
        """Whether it is in the topic, or a dead letter; false: not now."""
        rule = self._rule
        envelope = Envelope(
            id=event_id, project=rule.project, data=raw, group=self._name, headers=_JSON
        )
        try:
            await self._within.produce(rule.project, rule.topic, envelope)
        except InvalidInputError as error:
            _log.warning("an event was refused", list=rule.list, problem=str(error))
            # With its id, without which two events that are alike would be one.
            member, cause = b"%b %b" % (event_id.encode(), raw), str(error)
            await self.refused.bury(
                event_id, member, cause=cause, attempts=1, readable=True, was=was
            )
        except WaystationError as error:
            _log.warning("an event must wait", list=rule.list, problem=str(error))
            return False
        return True

    async def _give_back(self, rest: Sequence[TakenMessage]) -> None:
        """To the front of the list, the last one first: their order stays."""
        for each in reversed(rest):
            await self._queue.back(each.number)
