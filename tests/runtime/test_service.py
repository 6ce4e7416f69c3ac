"""Service: start, stop within its limits, crash, spawned work, and loops that survive errors."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

import pytest

from tests.helpers.waiting import eventually
from waystation.errors import BusyError, StoreUnavailableError
from waystation.runtime import service as module
from waystation.runtime.clock import Clock
from waystation.runtime.service import Service, Wakeup


@pytest.fixture(autouse=True)
def quick_limits(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(module, "_CANCEL_S_MAX", 0.1)
    monkeypatch.setattr(module, "_ON_STOP_S_MAX", 0.1)
    monkeypatch.setattr(module, "_RETRY_S_FIRST", 0.005)
    caplog.set_level(logging.INFO, logger="waystation")


class Recorder(Service):
    """A service that records its life in `events` and repeats one step."""

    def __init__(
        self, step: Callable[[], object] = lambda: None, *, every_s: float = 3600.0
    ) -> None:
        super().__init__("recorder", clock=Clock())
        self.events: list[str] = []
        self.calls = 0
        self.wakeup = Wakeup()
        self.step = step
        self.every_s = every_s
        self.crash: BaseException | None = None

    async def on_start(self) -> None:
        self.events.append("start")

    async def run(self) -> None:
        await self.repeat(self.count, every_s=self.every_s, wakeup=self.wakeup)

    async def count(self) -> None:
        self.calls += 1
        result = self.step()
        if asyncio.iscoroutine(result):
            await result

    async def on_stop(self) -> None:
        self.events.append("stop")

    def on_crash(self, error: BaseException) -> None:
        self.crash = error


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records]


# -- Stop ----------------------------------------------------------------------------------------


async def test_stop_finishes_short_step() -> None:
    finished = []

    async def step() -> None:
        await asyncio.sleep(0.02)
        finished.append(True)

    async with Recorder(step) as service:
        await eventually(lambda: service.calls == 1)

    assert finished == [True]
    assert service.events == ["start", "stop"]


async def test_stop_cancels_endless_step_after_grace_time() -> None:
    async with Recorder(asyncio.Event().wait) as service:
        await eventually(lambda: service.calls == 1)
        started = asyncio.get_running_loop().time()
        await service.stop(grace_s=0.05)

    assert 0.04 < asyncio.get_running_loop().time() - started < 1
    assert service.events == ["start", "stop"]


async def test_stop_with_step_that_ignores_cancellation_returns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    released = asyncio.Event()

    async def deaf() -> None:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    service = Recorder(deaf)
    await service.start()
    await eventually(lambda: service.calls == 1)

    await service.stop(grace_s=0)

    assert messages(caplog) == ["service ignored cancellation"]
    assert service.events == ["start", "stop"]
    released.set()
    await service.ended()


async def test_stop_with_hanging_release_returns(caplog: pytest.LogCaptureFixture) -> None:
    class Hanging(Recorder):
        async def on_stop(self) -> None:
            await asyncio.Event().wait()

    async with Hanging():
        pass

    assert messages(caplog) == ["service failed in on_stop"]


async def test_stop_with_failing_release_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Recorder):
        async def on_stop(self) -> None:
            raise BusyError("full")

    async with Failing():
        pass

    assert messages(caplog) == ["service failed in on_stop"]


async def test_second_stop_and_stop_before_start_do_nothing() -> None:
    service = Recorder()
    await service.stop()
    assert service.events == []

    await service.start()
    await service.stop()
    await service.stop()

    assert service.events == ["start", "stop"]


async def test_stop_ends_wait_of_loop_without_grace_time() -> None:
    async with Recorder(every_s=3600) as service:
        await eventually(lambda: service.calls == 1)
        async with asyncio.timeout(0.5):
            await service.stop(grace_s=60)

    assert service.calls == 1


async def test_start_with_failing_preparation_raises_its_error() -> None:
    class Unprepared(Recorder):
        async def on_start(self) -> None:
            raise StoreUnavailableError("silent")

    service = Unprepared()
    with pytest.raises(StoreUnavailableError):
        await service.start()
    await service.stop()

    assert service.calls == 0


# -- Crash and spawned work ----------------------------------------------------------------------


async def test_error_that_leaves_run_crashes_service(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Recorder):
        async def run(self) -> None:
            raise LookupError("bug")

    async with Broken() as service:
        await service.ended()

        assert isinstance(service.crash, LookupError)
        assert messages(caplog) == ["service crashed"]
    assert service.events == ["start", "stop"]


async def test_spawned_work_that_fails_is_logged_and_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> None:
        raise LookupError("bug")

    async with Recorder() as service:
        service.spawn(fail())
        await eventually(lambda: bool(caplog.records))
        service.wakeup.set()
        await eventually(lambda: service.calls == 2)

    assert messages(caplog) == ["task failed"]
    assert service.crash is None


async def test_critical_work_that_fails_crashes_service() -> None:
    async def fail() -> None:
        raise LookupError("bug")

    async with Recorder() as service:
        service.spawn(fail(), critical=True)
        await service.ended()

    assert isinstance(service.crash, LookupError)


async def test_stop_finishes_spawned_work_within_grace_time() -> None:
    finished = []

    async def work() -> None:
        await asyncio.sleep(0.02)
        finished.append(True)

    async with Recorder() as service:
        service.spawn(work())

    assert finished == [True]


async def test_work_spawned_after_stop_is_dropped() -> None:
    async def work() -> None:
        raise AssertionError("spawned work ran after the service had stopped")

    async with Recorder() as service:
        pass
    service.spawn(work())
    service.spawn(work(), critical=True)
    await asyncio.sleep(0)


# -- Loops ---------------------------------------------------------------------------------------


async def test_repeat_calls_step_on_wakeup_and_on_jump_of_test_time() -> None:
    async with Recorder(every_s=3600) as service:
        await eventually(lambda: service.calls == 1)
        service.wakeup.set()
        await eventually(lambda: service.calls == 2)
        service.clock.shift_to(1000)
        await eventually(lambda: service.calls == 3)


async def test_repeat_with_period_above_ten_seconds_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    real_wait = Wakeup.wait

    service = Recorder(every_s=3600)

    async def wait(wakeup: Wakeup, timeout_s: float) -> None:
        # Other services of this process, such as a server in a thread, call this function too.
        if wakeup is service.wakeup:
            waits.append(min(timeout_s, wakeup._recheck_s))
        await real_wait(wakeup, timeout_s)

    monkeypatch.setattr(Wakeup, "wait", wait)
    async with service:
        await eventually(lambda: bool(waits))
        service.wakeup = Wakeup(recheck_s=10.0)

    assert waits == [3600]


async def test_repeat_waits_for_seconds_that_step_returns() -> None:
    class Soon(Recorder):
        async def run(self) -> None:
            await self.repeat(self.soon, every_s=3600)

        async def soon(self) -> float:
            self.calls += 1
            return 0.001

    async with Soon() as service:
        await eventually(lambda: service.calls > 3)


async def test_repeat_of_step_that_never_waits_lets_other_tasks_run() -> None:
    class Greedy(Recorder):
        async def run(self) -> None:
            await self.repeat(self.again, every_s=3600)

        async def again(self) -> float:
            self.calls += 1
            return 0.0

    async with Greedy() as service:
        await eventually(lambda: service.calls > 3)


async def test_repeat_rests_between_calls_although_woken() -> None:
    class Rested(Recorder):
        async def run(self) -> None:
            await self.repeat(self.count, every_s=3600, wakeup=self.wakeup, rest_s=0.2)

    service = Rested()
    service.step = service.wakeup.set
    async with service:
        await asyncio.sleep(0.05)
        assert service.calls == 1
        await eventually(lambda: service.calls == 2)


async def test_repeat_logs_each_kind_of_error_once_and_resumes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    errors = [
        BusyError("full"),
        StoreUnavailableError("silent"),
        BusyError("full"),
        LookupError("bug"),
        asyncio.CancelledError(),
        BusyError("full"),
    ]

    def step() -> None:
        if errors:
            raise errors.pop(0)

    async with Recorder(step, every_s=0.001) as service:
        await eventually(lambda: service.calls > 10)

    assert messages(caplog) == [
        "task attempt failed",
        "task attempt failed",
        "task failed",
        "task failed",
        "task resumed",
    ]
    assert caplog.records[0].fields == {"task": "Recorder.count", "reason": "full"}  # type: ignore[attr-defined]


async def test_stop_during_pause_after_failure_returns_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_RETRY_S_FIRST", 60.0)

    def fail() -> None:
        raise BusyError("full")

    async with Recorder(fail) as service:
        await eventually(lambda: service.calls == 1)
        async with asyncio.timeout(0.5):
            await service.stop(grace_s=60)


# -- Wakeup --------------------------------------------------------------------------------------


async def test_wakeup_set_before_wait_ends_it() -> None:
    wakeup = Wakeup()
    wakeup.set()
    await wakeup.wait(3600)
    wakeup.clear()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await wakeup.wait(math.inf)


async def test_wakeup_with_recheck_ends_long_wait() -> None:
    async with asyncio.timeout(1):
        await Wakeup(recheck_s=0.01).wait(3600)


async def test_wakeup_wait_ends_after_timeout() -> None:
    async with asyncio.timeout(1):
        await Wakeup().wait(0.01)
        await Wakeup().wait(0)
