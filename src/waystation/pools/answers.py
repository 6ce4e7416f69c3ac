"""Answers to messages: a worker gives one, whoever handed the message in waits for it.

The answer lies in the pool for a minute, so it does not matter which process waits, nor whether the
hint arrives. One that nobody waits for is forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import msgspec

from waystation.errors import InvalidInputError, TooLargeError
from waystation.pools.names import Place
from waystation.pools.refusals import check
from waystation.runtime.ids import require_name
from waystation.runtime.service import Wakeup
from waystation.store.client import Store
from waystation.store.pubsub import RECHECK_S, PubSub
from waystation.store.scripts import script

_ANSWER = script(__package__, "answer")

#: The header of a message whose answer is waited for: under which id.
ANSWER_TO = "waystation-answer-to"
#: How long an answer is kept; nobody waits longer.
KEEP_MS = 60_000
#: A script's arguments are copied; an answer is a message, not a file.
ANSWER_BYTES_MAX = 4 * 1_048_576
_TYPE_MAX = 200


class Answer(msgspec.Struct, frozen=True):
    """What a worker answered; without bytes: that there is nothing to say."""

    content_type: str
    data: bytes


class Answers:
    """Gives and waits for answers. One for a process."""

    def __init__(self, store: Store, wakeups: PubSub) -> None:
        self._store = store
        self._wakeups = wakeups
        #: Who waits here, by pool and id; and the ends of what was listened to.
        self._waiting: dict[tuple[Place, str], set[Wakeup]] = {}
        self._listening: dict[Place, Callable[[], None]] = {}
        self._ended = False

    def __repr__(self) -> str:
        return f"<Answers [{len(self._waiting)} waited for]>"

    async def put(self, place: Place, message_id: str, content_type: str, data: bytes) -> None:
        """Gives the answer to a message; a second one changes nothing."""
        if len(data) > ANSWER_BYTES_MAX:
            raise TooLargeError(f"An answer has at most {ANSWER_BYTES_MAX} bytes.", field="answer")
        if not (content_type.isascii() and content_type.isprintable()):
            raise InvalidInputError("The content type cannot be sent.", field="content_type")
        packed = content_type[:_TYPE_MAX].encode() + b"\n" + data
        arguments = (require_name(message_id, field="id"), packed, KEEP_MS)
        check(await self._store.run(_ANSWER, [place.head], arguments), place)

    async def wait(
        self, place: Place, message_id: str, *, seconds: float, keep: bool = False
    ) -> Answer | None:
        """The answer to a message, or None when none came in time.

        Who may have to ask again, as after a lost reply, keeps it for its minute.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + min(seconds, KEEP_MS / 1000)
        self._listen(place)
        key = place.key(f"answer:{message_id}")
        waiter = Wakeup(recheck_s=RECHECK_S)
        together = self._waiting.setdefault((place, message_id), set())
        together.add(waiter)
        try:
            while True:
                waiter.clear()
                found = await self._store.call("GET", key, repeatable=True)
                if found is not None:
                    return self._read(key, found, keep=keep)
                left = until - loop.time()
                if left <= 0 or self._ended:
                    return None
                await waiter.wait(left)
        finally:
            together.discard(waiter)
            if not together:
                self._waiting.pop((place, message_id), None)

    def end_waits(self) -> None:
        """Everyone who waits is told that there is no answer; for a process that stops."""
        self._ended = True
        for waiters in self._waiting.values():
            _wake(waiters)
        for end in self._listening.values():
            end()

    def _read(self, key: str, found: bytes, *, keep: bool) -> Answer:
        if not keep:
            # Nobody else wants it. If this is lost, it goes with its minute.
            removal = self._store.call("UNLINK", key, repeatable=True)
            removal.add_done_callback(lambda done: done.cancelled() or done.exception())
        content_type, _, data = found.partition(b"\n")
        return Answer(content_type.decode(), data)

    def _listen(self, place: Place) -> None:
        if place in self._listening:
            return

        def wake(payload: bytes | None) -> None:
            if payload is not None:
                _wake(self._waiting.get((place, payload.decode()), ()))
                return
            # Something may have been missed: everyone looks.
            for (other, _), waiters in list(self._waiting.items()):
                if other == place:
                    _wake(waiters)

        topic = place.key("answer").encode()
        self._listening[place] = self._wakeups.listen(topic, wake)


def _wake(waiters: Iterable[Wakeup]) -> None:
    for waiter in waiters:
        waiter.set()
