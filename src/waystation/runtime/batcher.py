"""Batching: concurrent callers share calls, and the items of one key keep their order.

The first item of a key is sent in the next turn of the event loop, together with all items that
this turn adds. Items added while a call is in flight go with the next call. So batches grow with
the load, and an item waits for at most one call before its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Key, Item, Result]):
    """A queue and at most one call in flight per key.

    `send(key, items)` returns one result per item, in order. It may return results for the first
    items only; the batcher then puts the others back at the head of the queue and sends them
    again. A `send` that returns no result must have paused the batcher, or else the same batch is
    sent again immediately.

    `settle(items, results)` receives the items that have a result, in order. If `send` raises,
    `fail(items, error)` receives all items of the call. Both must not raise.

    A batcher has no limit of its own: its user counts pending items and refuses new ones.

    The state is the queue and the task of each key, and whether sending is paused. While sending
    is not paused, every queue has a task.
    """

    def __init__(
        self,
        send: Callable[[Key, list[Item]], Awaitable[Sequence[Result]]],
        settle: Callable[[Sequence[Item], Sequence[Result]], None],
        fail: Callable[[Sequence[Item], BaseException], None],
        *,
        items_max: int = 100,
        bytes_max: int = 1_048_576,
        size_of: Callable[[Item], int] = lambda item: 0,
    ) -> None:
        self._send = send
        self._settle = settle
        self._fail = fail
        self._items_max = items_max
        #: Bytes of one call. A single larger item is sent alone.
        self.bytes_max = bytes_max
        self._size_of = size_of
        self._queues: dict[Key, deque[Item]] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._paused = False

    def __repr__(self) -> str:
        queued = sum(map(len, self._queues.values()))
        return f"<Batcher [{queued} queued, {len(self._tasks)} in flight]>"

    @property
    def busy(self) -> bool:
        """Whether an item is queued or in flight."""
        return bool(self._queues or self._tasks)

    def add(self, key: Key, item: Item) -> None:
        """Queue an item behind all items that were added under this key before."""
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = deque()
            if not self._paused:
                self._start(key)
        queue.append(item)

    def extend(self, key: Key, items: Sequence[Item]) -> None:
        """Queue several items behind all items that were added under this key before."""
        if not items:
            return
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = deque()
            if not self._paused:
                self._start(key)
        queue.extend(items)

    # -- Control -----------------------------------------------------------------------------

    def pause(self) -> None:
        """Start no further call until `resume`. Calls in flight continue."""
        self._paused = True

    def resume(self) -> None:
        """Send the queued items."""
        self._paused = False
        for key in self._queues:
            if key not in self._tasks:
                self._start(key)

    async def wait_until_idle(self) -> None:
        """Wait until no call is in flight and, unless the batcher is paused, no item is queued."""
        while self._tasks:
            await asyncio.wait(set(self._tasks.values()))

    def take_all(self) -> list[Item]:
        """Remove and return all queued items, in order within each key."""
        taken = [item for queue in self._queues.values() for item in queue]
        for queue in self._queues.values():
            queue.clear()
        # Keep the queue of a running task, because the task may put unsettled items back.
        self._queues = {key: each for key, each in self._queues.items() if key in self._tasks}
        return taken

    def withdraw(self, key: Key, unwanted: Callable[[Item], bool]) -> list[Item]:
        """Remove and return the queued items of a key that satisfy a predicate."""
        queue = self._queues.get(key)
        if queue is None:
            return []
        withdrawn = [item for item in queue if unwanted(item)]
        if withdrawn:
            kept = [item for item in queue if not unwanted(item)]
            queue.clear()
            queue.extend(kept)
        return withdrawn

    async def close(self, *, grace_s: float) -> None:
        """Send queued items for up to `grace_s`, then cancel the calls in flight.

        Items without a result fail with a CancelledError, so that no caller waits forever.
        """
        if tasks := set(self._tasks.values()):
            await asyncio.wait(tasks, timeout=grace_s)
        tasks = set(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # Items can remain here: a task that was cancelled before its first step settles none, and
        # a paused batcher has queues without a task.
        self._tasks.clear()
        if unsent := self.take_all():
            self._fail(unsent, asyncio.CancelledError())

    # -- Sending -----------------------------------------------------------------------------

    def _start(self, key: Key) -> None:
        # The task starts in the next turn of the loop, with all items that this turn adds.
        self._tasks[key] = asyncio.create_task(self._send_queue(key, self._queues[key]))

    async def _send_queue(self, key: Key, queue: deque[Item]) -> None:
        try:
            while queue and not self._paused:
                batch = self._next_batch(queue)
                try:
                    results = await self._send(key, batch)
                except Exception as error:
                    self._fail(batch, error)
                    continue
                except BaseException as error:
                    # Cancelled: fail the queued items too, because no task is left to send them.
                    unsent = [*batch, *queue]
                    queue.clear()
                    self._fail(unsent, error)
                    raise
                if len(results) < len(batch):
                    queue.extendleft(reversed(batch[len(results) :]))
                    batch = batch[: len(results)]
                self._settle(batch, results)
        finally:
            del self._tasks[key]
            if not queue:
                self._queues.pop(key, None)
            elif not self._paused:
                # `settle` or `fail` raised an error. Start again, so that the other items are sent.
                self._start(key)

    def _next_batch(self, queue: deque[Item]) -> list[Item]:
        # Send all items in one call if they fit, which saves most of the work per item.
        if len(queue) <= self._items_max and sum(map(self._size_of, queue)) <= self.bytes_max:
            batch = list(queue)
            queue.clear()
            return batch
        batch = [queue.popleft()]
        size = self._size_of(batch[0])
        while queue and len(batch) < self._items_max:
            size += self._size_of(queue[0])
            if size > self.bytes_max:
                break
            batch.append(queue.popleft())
        return batch


class RequestBatcher(Generic[Key, Item, Result]):
    """A batcher whose callers each await a reply.

    `send(key, items)` returns one reply per item. A reply that is an exception is raised in the
    caller of its item alone.
    """

    def __init__(
        self,
        send: Callable[[Key, list[Item]], Awaitable[Sequence[Result | Exception]]],
        *,
        items_max: int = 100,
    ) -> None:
        self._send_items = send
        self._batcher: Batcher[Key, tuple[Item, asyncio.Future[Result]], Result | Exception] = (
            Batcher(self._send, _resolve, _reject, items_max=items_max)
        )
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"<Request{repr(self._batcher)[1:]}"

    def ask(self, key: Key, item: Item) -> asyncio.Future[Result]:
        """Return the reply as a future. An item whose future is cancelled in time is not sent."""
        loop = self._loop
        if loop is None:
            # Cache the loop, because `get_running_loop` makes a system call in Python 3.11.
            loop = self._loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._batcher.add(key, (item, future))
        return future

    async def close(self, *, grace_s: float) -> None:
        """Send queued items for up to `grace_s`, then cancel the futures that have no reply."""
        await self._batcher.close(grace_s=grace_s)

    async def _send(
        self, key: Key, asked: list[tuple[Item, asyncio.Future[Result]]]
    ) -> list[Result | Exception]:
        wanted = [position for position, (_, future) in enumerate(asked) if not future.done()]
        replies: list[Any] = [None] * len(asked)
        if wanted:
            found = await self._send_items(key, [asked[position][0] for position in wanted])
            for position, reply in zip(wanted, found, strict=True):
                replies[position] = reply
        return replies


def _resolve(asked: Sequence[tuple[Any, asyncio.Future[Any]]], results: Sequence[object]) -> None:
    for (_, future), result in zip(asked, results, strict=True):
        if future.done():
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)


def _reject(asked: Sequence[tuple[Any, asyncio.Future[Any]]], error: BaseException) -> None:
    for _, future in asked:
        if future.done():
            continue
        if isinstance(error, asyncio.CancelledError):
            future.cancel()
        else:
            future.set_exception(error)
