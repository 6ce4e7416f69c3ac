"""The relay: an envelope becomes a message of its recipient's key, and its answer comes back."""

from __future__ import annotations

import msgspec

from waystation.acapy.envelopes import Transport, envelope_of
from waystation.acapy.recipients import Recipients
from waystation.messages.envelope import pack
from waystation.pools.answers import Answer, Answers
from waystation.pools.held import Letter
from waystation.relay.inbox import Inbox
from waystation.runtime.ids import IdSource, SequentialIds


class Accepted(msgspec.Struct, frozen=True):
    """A message that is durable in the pool; and the id of its answer, if one is wanted."""

    id: str
    answer_to: str


class Relay:
    """What all doors of a process share."""

    def __init__(
        self, inbox: Inbox, answers: Answers, *, identity: IdSource, answer_seconds: float
    ) -> None:
        self._inbox = inbox
        self._answers = answers
        self._identity = SequentialIds(identity)
        #: Who knows the id of an answer can give it: it must not be guessed.
        self._secrets = identity
        self.answer_seconds = answer_seconds

    async def accept(
        self,
        body: bytes,
        found: Recipients,
        transport: Transport,
        *,
        content_type: str,
        wanted: bool = False,
    ) -> Accepted:
        """Store a message in the pool and return once it is durable.

        Raise an error if it is not durable, or may not be. Ignore the wish for an answer if the
        workers of the pool cannot answer.
        """
        message_id = self._identity.token(16)
        wanted = (wanted or found.wants_answer) and await self._inbox.can_answer()
        answer_to = self._secrets.token(16) if wanted else ""
        envelope = envelope_of(
            body,
            message_id=message_id,
            project=self._inbox.place.project,
            key=found.key,
            transport=transport,
            content_type=content_type,
            answer_to=answer_to,
        )
        await self._inbox.enqueue(Letter(message_id, found.key, pack(envelope)))
        return Accepted(message_id, answer_to)

    async def answer(self, accepted: Accepted, *, seconds: float | None = None) -> Answer | None:
        """The worker's answer; None: none was wanted, or none came in time."""
        if not accepted.answer_to:
            return None
        wait = self.answer_seconds if seconds is None else min(seconds, self.answer_seconds)
        place = self._inbox.place
        return await self._answers.wait(place, accepted.answer_to, seconds=wait)

    def end_waits(self) -> None:
        """Whoever waits for an answer gets none; for a process that stops."""
        self._answers.end_waits()

    async def close(self) -> None:
        """Lets go of everything."""
        self.end_waits()
        await self._inbox.close()
