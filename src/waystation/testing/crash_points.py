"""Crash points: dies at every store call of a scenario, before it, within it and after it.

A scenario is run once whole, to count its calls to the store. Then it is run again for each call
and each moment, in a process of its own that dies there, as by `kill -9`. After each death the
test says what must hold:

    async def scenario(store):
        await Orders(store).accept("o-1")

    async def after(store, point):
        await Orders(store).accept("o-1")               # what a client does: it tries again
        assert await store.call("LLEN", "orders") == 1

    crash_points(server.address, scenario, after)

That makes "what if the process dies between these two lines?" exhaustive.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from waystation.store.address import Address
from waystation.store.client import Store
from waystation.store.connection import Reply, ServerConnection
from waystation.store.scripts import Script

Scenario = Callable[[Store], Awaitable[None]]

_CRASHED = 86
_CALLS_MAX = 10_000


class Moment(StrEnum):
    """When, around one call, the process dies."""

    BEFORE_SEND = "before send"
    AFTER_SEND = "after send, before the reply"
    AFTER_REPLY = "after the reply"


@dataclass(frozen=True)
class CrashPoint:
    """One way to die."""

    call: int
    moment: Moment

    def __str__(self) -> str:
        return f"call {self.call}, {self.moment}"


After = Callable[[Store, CrashPoint], Awaitable[None]]


def crash_points(
    address: Address,
    scenario: Scenario,
    after: After,
    *,
    prepare: Scenario | None = None,
    test_mode: bool = False,
    moments: Sequence[Moment] = tuple(Moment),
    varies: bool = False,
) -> list[CrashPoint]:
    """Runs the scenario through all its deaths; returns them. The store is emptied each time.

    Where what it calls `varies`, since it does several things at a time, one that ends before its
    death is no death, and is left out.
    """
    calls = asyncio.run(_count_calls(address, scenario, prepare, test_mode))
    assert calls, "the scenario never called the store"
    points = []
    for point in [CrashPoint(call, each) for call in range(1, calls + 1) for each in moments]:
        asyncio.run(_reset(address, prepare, test_mode))
        code = _die(address, scenario, point, test_mode)
        if varies and code == 0:
            continue
        assert code == _CRASHED, f"the scenario did not reach {point}: it ended with {code}"
        points.append(point)
        try:
            asyncio.run(_look(address, after, point, test_mode))
        except AssertionError as error:
            raise AssertionError(f"after a crash at {point} of {calls} calls: {error}") from error
    return points


class _CrashingConnection(ServerConnection):
    """Dies when it has sent what `last` waits for."""

    last: ClassVar[asyncio.Future[Reply] | None] = None

    def _flush(self) -> None:
        connected = self._protocol is not None
        sends = connected and any(call.future is self.last for call in self._unsent)
        super()._flush()
        if sends:
            # asyncio's own transport (not uvloop's) has handed the bytes to the kernel by now.
            os._exit(_CRASHED)


class _CountingStore(Store):
    """A store that counts calls, and dies at one of them if told so."""

    _connection_type = _CrashingConnection

    def __init__(self, address: Address, *, point: CrashPoint | None, test_mode: bool) -> None:
        super().__init__(address, test_mode=test_mode)
        self.point = point
        self.calls = 0

    def _submit(
        self,
        packed: bytes,
        *,
        repeatable: bool,
        script: Script | None = None,
        arguments: tuple[Any, ...] = (),
    ) -> asyncio.Future[Reply]:
        self.calls += 1
        assert self.calls < _CALLS_MAX, "the scenario does not end"
        here = self.point is not None and self.point.call == self.calls
        moment = self.point.moment if self.point and here else None
        if moment is Moment.BEFORE_SEND:
            os._exit(_CRASHED)
        future = super()._submit(packed, repeatable=repeatable, script=script, arguments=arguments)
        if moment is Moment.AFTER_SEND:
            _CrashingConnection.last = future
        elif moment is Moment.AFTER_REPLY:
            # Callbacks run in order, and nobody else can have added one yet: the reply is here,
            # and the scenario has not seen it.
            future.add_done_callback(lambda _: os._exit(_CRASHED))
        return future


async def _count_calls(
    address: Address, scenario: Scenario, prepare: Scenario | None, test_mode: bool
) -> int:
    await _reset(address, prepare, test_mode)
    store = _CountingStore(address, point=None, test_mode=test_mode)
    try:
        await scenario(store)
    finally:
        await store.close()
    return store.calls


async def _reset(address: Address, prepare: Scenario | None, test_mode: bool) -> None:
    store = Store(address, test_mode=test_mode)
    try:
        await store.call("FLUSHALL")
        if prepare is not None:
            await prepare(store)
    finally:
        await store.close()


async def _look(address: Address, after: After, point: CrashPoint, test_mode: bool) -> None:
    store = Store(address, test_mode=test_mode)
    try:
        await after(store, point)
    finally:
        await store.close()


def _die(address: Address, scenario: Scenario, point: CrashPoint, test_mode: bool) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        # Never returns into the test: a forked test runner must not report twice.
        try:
            asyncio.run(_run_to_death(address, scenario, point, test_mode))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


async def _run_to_death(
    address: Address, scenario: Scenario, point: CrashPoint, test_mode: bool
) -> None:
    await scenario(_CountingStore(address, point=point, test_mode=test_mode))
