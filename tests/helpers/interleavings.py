"""Interleavings of concurrent store calls in every order, and a counter of store calls."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable
from typing import Any

from waystation.store.client import Store

Actor = Callable[[Any], Awaitable[object]]


class _SteppedStore:
    """Store client whose calls block until the test releases them, one at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.blocked: asyncio.Future[None] | None = None

    def run(self, *arguments: Any) -> Awaitable[Any]:
        return self._stepped(lambda: self._store.run(*arguments))

    def call(self, *command: Any, **options: Any) -> Awaitable[Any]:
        return self._stepped(lambda: self._store.call(*command, **options))

    async def _stepped(self, call: Callable[[], Awaitable[Any]]) -> Any:
        self.blocked = asyncio.get_running_loop().create_future()
        await self.blocked
        return await call()


async def _one_run(
    store: Store, actors: list[Actor], choose: Callable[[int, int], int]
) -> list[tuple[int, int]]:
    """Run the actors in the order that `choose(step, options)` selects.

    Return each choice with its number of options.
    """
    stepped = [_SteppedStore(store) for _ in actors]
    tasks = [
        asyncio.ensure_future(actor(each)) for actor, each in zip(actors, stepped, strict=True)
    ]
    taken: list[tuple[int, int]] = []
    while True:
        # Run until each actor has ended or waits before a call.
        while any(not t.done() and s.blocked is None for t, s in zip(tasks, stepped, strict=True)):
            await asyncio.sleep(0)
        ready = [s for t, s in zip(tasks, stepped, strict=True) if not t.done()]
        if not ready:
            break
        choice = choose(len(taken), len(ready))
        taken.append((choice, len(ready)))
        chosen = ready[choice]
        gate, chosen.blocked = chosen.blocked, None
        assert gate is not None
        gate.set_result(None)
    await asyncio.gather(*tasks)
    return taken


async def all_orders(
    store: Store,
    prepare: Callable[[], Awaitable[object]],
    actors: list[Actor],
    check: Callable[[str], Awaitable[object]],
) -> int:
    """Run every order of the calls of the actors. Return the number of orders."""
    wanted: list[int] = []
    orders = 0
    while True:
        await prepare()
        taken = await _one_run(store, actors, functools.partial(_by, wanted))
        await check(_name(taken))
        orders += 1
        # Next order: raise the last choice that can be raised, and drop the choices behind it.
        while taken and taken[-1][0] + 1 >= taken[-1][1]:
            taken.pop()
        if not taken:
            return orders
        wanted = [choice for choice, _ in taken]
        wanted[-1] += 1


async def some_orders(
    store: Store,
    prepare: Callable[[], Awaitable[object]],
    actors: list[Actor],
    check: Callable[[str], Awaitable[object]],
    *,
    seed: int,
    count: int,
) -> None:
    """Run `count` random orders of the calls of the actors."""
    rng = random.Random(seed)
    for _ in range(count):
        await prepare()
        await check(_name(await _one_run(store, actors, lambda _, options: rng.randrange(options))))


def _by(wanted: list[int], step: int, options: int) -> int:
    return wanted[step] if step < len(wanted) else 0


def _name(taken: list[tuple[int, int]]) -> str:
    return "".join(str(choice) for choice, _ in taken)


def count_calls(store: Store) -> Callable[[], int]:
    """Count store calls from now on. The returned function returns their number."""
    count = 0
    submit = store._submit

    def counting(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        return submit(*arguments, **options)

    store._submit = counting  # type: ignore[method-assign]
    return lambda: count
