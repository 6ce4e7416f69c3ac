"""The crash-point kit really dies where it says, and finds what it is for."""

from __future__ import annotations

import pytest

from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.testing import CrashPoint, Moment, crash_points


async def two_writes(store: Store) -> None:
    await store.call("SET", "first", "1")
    await store.call("SET", "second", "1")


def test_every_call_has_three_deaths_each_with_its_own_effect(store_server: EmbeddedServer) -> None:
    seen: dict[CrashPoint, tuple[bool, bool]] = {}

    async def after(store: Store, point: CrashPoint) -> None:
        first = await store.call("EXISTS", "first")
        second = await store.call("EXISTS", "second")
        seen[point] = (bool(first), bool(second))

    points = crash_points(store_server.address, two_writes, after)

    assert points == list(seen)
    assert seen == {
        CrashPoint(1, Moment.BEFORE_SEND): (False, False),
        CrashPoint(1, Moment.AFTER_SEND): (True, False),
        CrashPoint(1, Moment.AFTER_REPLY): (True, False),
        CrashPoint(2, Moment.BEFORE_SEND): (True, False),
        CrashPoint(2, Moment.AFTER_SEND): (True, True),
        CrashPoint(2, Moment.AFTER_REPLY): (True, True),
    }


def test_a_broken_promise_is_reported_with_its_point(store_server: EmbeddedServer) -> None:
    async def after(store: Store, point: CrashPoint) -> None:
        both = await store.call("EXISTS", "first", "second")
        assert both in (0, 2), "half written"

    with pytest.raises(AssertionError, match=r"call 1, after send.*half written"):
        crash_points(store_server.address, two_writes, after)
