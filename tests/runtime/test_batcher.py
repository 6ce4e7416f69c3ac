"""Batcher: shared calls, order, limits of a call, pause, removal of items, errors, and close."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from waystation.runtime.batcher import Batcher, RequestBatcher


class Calls:
    """A backend that records its calls, and the items that were settled with their results.

    It answers at once unless `gate` is cleared. `results_max` limits the results of a call.
    """

    def __init__(self, **options: int) -> None:
        self.sent: list[tuple[str, list[int]]] = []
        self.settled: list[tuple[int, object]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.results_max = 1000
        self.errors: dict[int, Exception] = {}
        self.batcher: Batcher[str, int, int] = Batcher(
            self._send, self._settle, self._fail, size_of=lambda item: item, **options
        )

    async def _send(self, key: str, items: list[int]) -> list[int]:
        self.sent.append((key, items))
        await self.gate.wait()
        for item in items:
            if item in self.errors:
                raise self.errors[item]
        return [item * 10 for item in items[: self.results_max]]

    def _settle(self, items: Sequence[int], results: Sequence[int]) -> None:
        self.settled += zip(items, results, strict=True)

    def _fail(self, items: Sequence[int], error: BaseException) -> None:
        self.settled += [(item, error) for item in items]

    def add(self, key: str, *items: int) -> None:
        for item in items:
            self.batcher.add(key, item)

    async def done(self) -> list[tuple[int, object]]:
        await self.batcher.wait_until_idle()
        return self.settled


async def test_batcher_sends_items_of_one_turn_in_one_call() -> None:
    calls = Calls()
    calls.add("a", 1, 2)
    calls.add("b", 3)

    assert await calls.done() == [(1, 10), (2, 20), (3, 30)]
    assert calls.sent == [("a", [1, 2]), ("b", [3])]
    assert repr(calls.batcher) == "<Batcher [0 queued, 0 in flight]>"
    assert not calls.batcher.busy


async def test_batcher_extend_queues_items_behind_those_of_add() -> None:
    calls = Calls()
    calls.add("a", 1)
    calls.batcher.extend("a", [2, 3])
    calls.batcher.extend("b", [])
    calls.batcher.extend("c", [4])

    assert await calls.done() == [(1, 10), (2, 20), (3, 30), (4, 40)]
    assert calls.sent == [("a", [1, 2, 3]), ("c", [4])]


async def test_batcher_sends_items_added_during_a_call_with_the_next_call() -> None:
    calls = Calls()
    calls.gate.clear()
    calls.add("a", 1)
    await asyncio.sleep(0)
    calls.add("a", 2, 3)
    assert repr(calls.batcher) == "<Batcher [2 queued, 1 in flight]>"
    calls.gate.set()

    await calls.done()
    assert calls.sent == [("a", [1]), ("a", [2, 3])]


async def test_batcher_limits_items_of_a_call() -> None:
    calls = Calls(items_max=2)
    calls.add("a", 1, 2, 3, 4, 5)

    await calls.done()
    assert [items for _, items in calls.sent] == [[1, 2], [3, 4], [5]]


async def test_batcher_limits_bytes_of_a_call_and_sends_a_larger_item_alone() -> None:
    calls = Calls(bytes_max=10)
    calls.add("a", 4, 5, 6, 99, 1)

    await calls.done()
    assert [items for _, items in calls.sent] == [[4, 5], [6], [99], [1]]


async def test_batcher_sends_items_without_result_again_in_order() -> None:
    calls = Calls()
    calls.results_max = 2
    calls.add("a", 1, 2, 3, 4, 5)

    assert await calls.done() == [(1, 10), (2, 20), (3, 30), (4, 40), (5, 50)]
    assert [items for _, items in calls.sent] == [[1, 2, 3, 4, 5], [3, 4, 5], [5]]


async def test_batcher_settles_items_of_a_failed_call_with_its_error() -> None:
    calls = Calls(items_max=2)
    calls.errors[1] = error = ConnectionError("refused")
    calls.add("a", 1, 2, 3)

    assert await calls.done() == [(1, error), (2, error), (3, 30)]


async def test_batcher_paused_finishes_calls_in_flight_and_starts_no_other() -> None:
    calls = Calls()
    calls.gate.clear()
    calls.add("a", 1)
    await asyncio.sleep(0)
    calls.add("a", 2)
    calls.batcher.pause()
    calls.add("b", 3)
    calls.gate.set()

    assert await calls.done() == [(1, 10)]
    calls.batcher.resume()
    assert await calls.done() == [(1, 10), (2, 20), (3, 30)]


async def test_batcher_take_all_returns_queued_items_grouped_by_key_in_order() -> None:
    calls = Calls()
    calls.gate.clear()
    calls.add("a", 1)
    await asyncio.sleep(0)
    calls.batcher.pause()
    calls.add("a", 2, 3)
    calls.add("b", 4)

    assert calls.batcher.take_all() == [2, 3, 4]
    calls.gate.set()
    calls.batcher.resume()
    assert await calls.done() == [(1, 10)]
    assert not calls.batcher.busy


async def test_batcher_refused_during_pause_keeps_batch_at_head_of_queue() -> None:
    calls = Calls()
    calls.results_max = 0
    calls.gate.clear()
    calls.add("a", 1, 2)
    await asyncio.sleep(0)
    calls.batcher.pause()
    calls.add("a", 3)
    calls.gate.set()
    await calls.batcher.wait_until_idle()

    assert calls.batcher.take_all() == [1, 2, 3]


async def test_batcher_withdraw_removes_selected_items_of_a_key() -> None:
    calls = Calls()
    calls.batcher.pause()
    calls.add("a", 1, 2, 3, 4)
    calls.add("b", 6)

    assert calls.batcher.withdraw("a", lambda item: item % 2 == 0) == [2, 4]
    assert calls.batcher.withdraw("unknown", lambda item: True) == []
    calls.batcher.resume()
    assert sorted(item for item, _ in await calls.done()) == [1, 3, 6]


async def test_batcher_with_error_in_settle_still_sends_items_behind_it() -> None:
    sent: list[list[int]] = []
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))

    async def send(key: str, items: list[int]) -> list[int]:
        sent.append(items)
        return items

    def settle(items: Sequence[int], results: Sequence[int]) -> None:
        if 1 in items:
            raise LookupError("bug")

    def fail(items: Sequence[int], error: BaseException) -> None:
        raise AssertionError("fail was called, but no call failed")

    batcher: Batcher[str, int, int] = Batcher(send, settle, fail, items_max=1)
    batcher.add("a", 1)
    batcher.add("a", 2)
    await batcher.wait_until_idle()

    assert sent == [[1], [2]]
    assert not batcher.busy


async def test_batcher_close_waits_for_queued_items() -> None:
    calls = Calls(items_max=1)
    calls.add("a", 1, 2)

    await calls.batcher.close(grace_s=5)

    assert calls.settled == [(1, 10), (2, 20)]


async def test_batcher_close_settles_items_in_flight_and_queued_as_cancelled() -> None:
    calls = Calls(items_max=1)
    calls.gate.clear()
    calls.add("a", 1, 2)
    await asyncio.sleep(0)

    await calls.batcher.close(grace_s=0)

    assert [(item, type(result)) for item, result in calls.settled] == [
        (1, asyncio.CancelledError),
        (2, asyncio.CancelledError),
    ]
    assert not calls.batcher.busy


async def test_batcher_close_before_first_turn_settles_items_as_cancelled() -> None:
    calls = Calls()
    calls.add("a", 1)
    (task,) = calls.batcher._tasks.values()
    task.cancel()

    await calls.batcher.close(grace_s=0)

    assert [(item, type(result)) for item, result in calls.settled] == [(1, asyncio.CancelledError)]
    assert calls.sent == []


# -- RequestBatcher ------------------------------------------------------------------------------


async def test_request_batcher_returns_each_caller_its_reply() -> None:
    calls: list[tuple[str, list[int]]] = []
    gate = asyncio.Event()

    async def send(key: str, items: list[int]) -> list[int]:
        calls.append((key, items))
        await gate.wait()
        return [item * 10 for item in items]

    batcher: RequestBatcher[str, int, int] = RequestBatcher(send, items_max=3)
    first = [batcher.ask("a", 1), batcher.ask("a", 2), batcher.ask("b", 7)]
    await asyncio.sleep(0)
    later = [batcher.ask("a", number) for number in (3, 4, 5, 6)]
    await asyncio.sleep(0)
    assert calls == [("a", [1, 2]), ("b", [7])], "one call of a key at a time"
    gate.set()

    assert await asyncio.gather(*first, *later) == [10, 20, 70, 30, 40, 50, 60]
    assert calls[2:] == [("a", [3, 4, 5]), ("a", [6])]
    await asyncio.sleep(0)
    assert repr(batcher) == "<RequestBatcher [0 queued, 0 in flight]>"


async def test_request_batcher_raises_error_of_a_call_in_its_callers_only() -> None:
    async def send(key: str, items: list[int]) -> list[int | Exception]:
        if 1 in items:
            raise ConnectionError("refused")
        return [ValueError("four") if item == 4 else item for item in items]

    batcher: RequestBatcher[str, int, int] = RequestBatcher(send)
    failed = [batcher.ask("a", 1), batcher.ask("a", 2)]
    await asyncio.sleep(0)
    answered, refused = batcher.ask("a", 3), batcher.ask("a", 4)

    for each in failed:
        with pytest.raises(ConnectionError):
            await each
    assert await answered == 3
    with pytest.raises(ValueError, match="four"):
        await refused


async def test_request_batcher_does_not_send_items_of_callers_that_gave_up() -> None:
    calls: list[list[int]] = []

    async def send(key: str, items: list[int]) -> list[int]:
        calls.append(items)
        return items

    batcher: RequestBatcher[str, int, int] = RequestBatcher(send)
    cancelled, kept = batcher.ask("a", 1), batcher.ask("a", 2)
    cancelled.cancel()
    assert await kept == 2
    batcher.ask("b", 3).cancel()
    await asyncio.sleep(0.01)

    assert calls == [[2]]


async def test_request_batcher_with_cancelled_call_cancels_all_its_callers() -> None:
    started = asyncio.Event()

    async def send(key: str, items: list[int]) -> list[int]:
        started.set()
        await asyncio.Event().wait()
        return items

    batcher: RequestBatcher[str, int, int] = RequestBatcher(send, items_max=1)
    in_flight, queued = batcher.ask("a", 1), batcher.ask("a", 2)
    await started.wait()

    await batcher.close(grace_s=0)

    assert in_flight.cancelled()
    assert queued.cancelled()
