"""Gathering: what is asked for one by one is asked together, in one call to the store.

The first to ask is heard in the same turn of the event loop, with all others of that turn. While
that call is under way, those who come wait for its end and then go together: the busier it is, the
more share a call, and nobody waits longer than one round trip.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Gathering(Generic[Key, Asked, Answer]):
    """Gathers by key. An error of a call is the error of all who shared it."""

    def __init__(
        self, ask: Callable[[Key, list[Asked]], Awaitable[Sequence[Answer]]], *, most: int = 100
    ) -> None:
        self._ask = ask
        self._most = most
        #: Key → those who wait for the next call. A key is in here while it has a task.
        self._waiting: dict[Key, list[tuple[Asked, asyncio.Future[Answer]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"<Gathering [{len(self._waiting)} keys]>"

    def ask(self, key: Key, asked: Asked) -> asyncio.Future[Answer]:
        """The answer, some time. Who gives up before the call begins is not asked for."""
        loop = self._loop
        if loop is None:
            # Kept: to ask for it costs a system call each time.
            loop = self._loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = []
            task = loop.create_task(self._work(key, waiting))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        waiting.append((asked, future))
        return future

    async def _work(self, key: Key, waiting: list[tuple[Asked, asyncio.Future[Answer]]]) -> None:
        try:
            while waiting:
                part = waiting[: self._most]
                del waiting[: self._most]
                await self._answer(key, [each for each in part if not each[1].done()])
        finally:
            del self._waiting[key]

    async def _answer(self, key: Key, part: list[tuple[Asked, asyncio.Future[Answer]]]) -> None:
        if not part:
            return
        try:
            answers = await self._ask(key, [asked for asked, _ in part])
        except Exception as error:
            for _, future in part:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(part, answers, strict=True):
            if not future.done():
                future.set_result(answer)
