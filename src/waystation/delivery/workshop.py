"""What all lanes of a process work with, and how hard they work."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from waystation.delivery.claims import Claims
from waystation.delivery.notices import Notices
from waystation.delivery.outbox import Outbox
from waystation.delivery.sender import Sender
from waystation.delivery.states import EndpointStates
from waystation.runtime.clock import Clock

#: A lane that has been empty for this long is retired, by whoever notices first.
IDLE_SECONDS = 60.0


class Pauses(msgspec.Struct, frozen=True):
    """What a lane leaves the store alone for."""

    #: Between two claims, at least.
    claim_seconds: float = 0.0
    #: While the process has all attempts under way that it may have; 0: until one ends.
    busy_seconds: float = 0.0
    #: Without a hint that something has come, at most.
    idle_seconds: float = 10.0


class Underway(Protocol):
    """Something that can be broken off."""

    break_off: Callable[[], object]


class Sending:
    """What is on its way to endpoints, and can be waited for."""

    def __init__(self) -> None:
        self._under_way: set[Underway] = set()
        self._quiet = asyncio.Event()
        self._quiet.set()

    def __repr__(self) -> str:
        return f"<Sending [{len(self._under_way)} under way]>"

    def add(self, one: Underway) -> None:
        """It has begun."""
        if not self._under_way:
            self._quiet.clear()
        self._under_way.add(one)

    def discard(self, one: Underway) -> None:
        """It has ended."""
        self._under_way.discard(one)
        if not self._under_way:
            self._quiet.set()

    async def end(self, grace_seconds: float) -> None:
        """Waits for all of it, and breaks off what takes longer."""
        try:
            async with asyncio.timeout(grace_seconds):
                await self._quiet.wait()
        except TimeoutError:
            for each in list(self._under_way):
                each.break_off()


@dataclass
class Workshop:
    """What all lanes of a process work with."""

    outbox: Outbox
    claims: Claims
    sender: Sender
    states: EndpointStates
    notices: Notices
    clock: Clock
    rng: random.Random
    new_token: Callable[[], str]
    #: Beyond it, and up to as many again, an endpoint without any may have one.
    attempts_max: int
    #: Begins a task that `Deliverer.stop` waits for; and has it wait for what is being written.
    begin: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    follow: Callable[[asyncio.Future[Any]], None]
    idle_seconds: float
    pauses: Pauses
    #: Attempts under way or about to begin, and those of them that may be broken off.
    under_way: int = 0
    sending: Sending = field(default_factory=Sending)
    #: Nothing more is claimed.
    stopping: bool = False
