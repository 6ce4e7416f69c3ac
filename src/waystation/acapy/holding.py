"""One message in the hands of a deliverer, and how it is let go of, wherever it came from.

It comes off the list of agents, or out of the retry set. Whatever becomes of it is written to the
retry set first, and only then it is taken off the list: who dies in between does it again.
"""

from __future__ import annotations

import msgspec

from waystation.acapy.outbound import OutboundQueue
from waystation.acapy.outbound_message import OutboundMessage, id_of
from waystation.acapy.retry_set import RetrySet


class Holding(msgspec.Struct, frozen=True):
    """A message that is ours until the lease ends, by this process's clock."""

    raw: bytes
    #: Of the list; None: it is a member of the retry set.
    number: int | None
    until: float

    @property
    def new_id(self) -> str:
        """What it is called from now on; empty: it has a name, or gets one by its bytes."""
        return "" if self.number is None else f"o-{self.number}"

    @property
    def was(self) -> bytes:
        """The member that it is, if it is one."""
        return self.raw if self.number is None else b""


class Settlements:
    """Lets go of messages. Every verb can be repeated."""

    def __init__(self, outbound: OutboundQueue, retries: RetrySet) -> None:
        self._outbound = outbound
        self._retries = retries

    async def done(self, held: Holding) -> None:
        """It was delivered."""
        if held.number is None:
            await self._retries.done(held.raw)
        else:
            await self._outbound.done(held.number)

    async def again(
        self, held: Holding, message: OutboundMessage, *, retries: int, wait_ms: int
    ) -> None:
        """It is due again, with so many attempts made."""
        member = message.member(retries=retries)
        await self._retries.put(member, wait_ms=wait_ms, was=held.was)
        if held.number is not None:
            await self._outbound.done(held.number)

    async def bury(
        self, held: Holding, message: OutboundMessage | None, *, cause: str, attempts: int
    ) -> int:
        """It is a dead letter; without a message, since it cannot be read."""
        dropped = await self._retries.bury(
            message.id if message else held.new_id or id_of(held.raw),
            message.member(retries=0) if message else held.raw,
            cause=cause,
            attempts=attempts,
            readable=message is not None,
            was=held.was,
        )
        if held.number is not None:
            await self._outbound.done(held.number)
        return dropped

    async def back(self, held: Holding) -> None:
        """It was not tried: another may have it at once."""
        if held.number is None:
            await self._retries.put(held.raw, wait_ms=0, was=held.raw)
        else:
            await self._outbound.back(held.number)
