"""The machine: steps that sleep, try again and wait go on in their time, on the real store."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.transactions.engine_helpers import open_machine
from tests.transactions.helpers import app_with
from waystation import App, Context, Fail, RetryLater, Wait
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions.states import State, Status

DAY = 86_400
# -- Sleeping and waiting --------------------------------------------------------------------


async def test_a_retry_comes_back_after_its_delay_and_counts(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app, delays = App(), []

    @app.step("flaky")
    async def flaky(ctx: Context) -> object:
        if ctx.retries < 3:
            return RetryLater("1h", factor=2, jitter=0.1, delay_max="2d", note="not yet")
        return ctx.retries

    app.pipeline("p", ["flaky"])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        started = await machine.start("p")
        for _ in range(3):
            found = await machine.reached(started, State.SLEEPING)
            delays.append(found.head.wake - found.head.since)
            await machine.time.advance(delays[-1] / 1000)
            while (await machine.found(started)).head.version == found.head.version:
                await asyncio.sleep(0.001)
        end = await machine.ended(started)
        assert end.output == 3
        assert end.outcomes("1") == ["retry", "retry", "retry", "success"]
        hour = 3_600_000
        for delay, whole in zip(delays, (hour, 2 * hour, 4 * hour), strict=True):
            assert 0.9 * whole <= delay <= 1.1 * whole
            assert delay != whole


async def test_a_sleep_of_days_ends_at_its_millisecond(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app = app_with(names_="a")
    app.pipeline("p", ["a", ("util/delay", {"min": 3 * DAY * 1000, "max": 3 * DAY * 1000}), "a"])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        begun = time.monotonic()
        started = await machine.start("p", {})
        asleep = await machine.reached(started, State.SLEEPING)
        await machine.time.advance(3 * DAY - 60)
        assert (await machine.found(started)).head.state is State.SLEEPING
        await machine.time.advance(60)
        jumps_ms = (time.monotonic() - begun) * 1000
        end = await machine.ended(started)
        assert end.output == {"steps": ["a", "a"]}
        late_ms = end.found.head.since - asleep.head.wake
        # The clock ran on while we jumped; whoever looks only now and then comes after ten seconds.
        assert 0 <= late_ms < jumps_ms + 5000


async def test_many_sleepers_wake_together_in_bulk(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app = App()
    app.pipeline("p", [("util/delay", {"min": DAY * 1000, "max": DAY * 1000})])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        new = [await machine.new("p") for _ in range(250)]
        for at in range(0, 250, 50):
            await machine.entry.start(0, new[at : at + 50])
        for each in new:
            await machine.reached(each.id, State.SLEEPING)
        await machine.time.advance(DAY + 1)
        for each in new:
            assert (await machine.ended(each.id)).status is Status.SUCCESS


async def test_a_switch_is_seen_before_during_and_after_the_wait(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """F-29."""
    app, calls = App(), []
    looked, may_wait = asyncio.Event(), asyncio.Event()

    @app.step("wait")
    async def wait(ctx: Context) -> object:
        value = ctx.switch("go")
        calls.append(value)
        if value is not None:
            return value
        if ctx.options.get("slowly"):
            looked.set()
            await may_wait.wait()
        return Wait("go", at_most="1d")

    app.pipeline("plain", ["wait"])
    app.pipeline("slowly", [("wait", {"slowly": True})])
    async with open_machine(store_server.address, app, tmp_path, workers=0) as machine:
        before = await machine.start("plain")
        await machine.signals.set_switch("", before, "go", 1)
        await machine.worker()
        assert (await machine.ended(before)).output == 1
        during = await machine.start("slowly")
        await looked.wait()
        await machine.signals.set_switch("", during, "go", 2)
        may_wait.set()
        assert (await machine.ended(during)).output == 2
        after = await machine.start("plain")
        await machine.reached(after, State.WAITING_SWITCH)
        await machine.signals.set_switch("", after, "go", 3)
        assert (await machine.ended(after)).output == 3
        assert calls == [1, None, 2, None, 3]


async def test_timed_out_is_true_only_when_at_most_has_passed(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """The default wake-up calls the step with it false; `at_most` runs from the first Wait."""
    app, told = App(), []

    @app.step("wait")
    async def wait(ctx: Context) -> object:
        told.append(ctx.timed_out)
        return Fail("nobody answered") if ctx.timed_out else Wait("go", at_most="3h")

    app.pipeline("p", ["wait"])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        started = await machine.start("p")
        for hours, calls in ((2, 2), (1, 3)):
            await machine.reached(started, State.WAITING_SWITCH)
            await machine.time.advance(hours * 3600)
            while len(told) < calls:
                await asyncio.sleep(0.001)
        end = await machine.ended(started)
        assert told == [False, False, True]
        assert end.output == {"error": "nobody answered"}
        # What the store kept for the step is gone with it.
        assert not [name for name in end.found.extras if name.startswith(b"wait:")]


async def test_timed_out_is_of_the_switch_that_the_step_has_waited_for_last(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """That an answer came late must not make the next question time out."""
    app, told = App(), []

    @app.step("ask")
    async def ask(ctx: Context) -> object:
        told.append(ctx.timed_out)
        if ctx.switch("first") is None:
            return Wait("first", at_most="3h")
        return Fail("nobody answered") if ctx.timed_out else Wait("second", at_most="3h")

    app.pipeline("p", ["ask"])
    async with open_machine(store_server.address, app, tmp_path) as machine:

        async def called(times: int) -> None:
            while len(told) < times:
                await asyncio.sleep(0.001)
            await machine.reached(started, State.WAITING_SWITCH)

        started = await machine.start("p")
        await called(1)
        await machine.time.advance(1 * 3600)
        await machine.signals.set_switch("default", started, "first", "yes")
        await called(2)
        # That of the first is over by now; the second has an hour left.
        await machine.time.advance(2 * 3600 + 1)
        await called(3)
        await machine.time.advance(1 * 3600)
        assert (await machine.ended(started)).output == {"error": "nobody answered"}
        assert told == [False, False, False, True]


async def test_a_step_that_comes_back_to_a_wait_that_is_over_is_told_at_once(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app, told = App(), []

    @app.step("ask")
    async def ask(ctx: Context) -> object:
        told.append(ctx.timed_out)
        match len(told):
            case 1 | 3:
                return Wait("first", at_most="1h")
            case 2:
                return Wait("second")
            case 4:
                return Wait("first", at_most="1h")  # It was told, and does not spin.
            case _:
                return "done"

    app.pipeline("p", ["ask"])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        started = await machine.start("p")
        for calls in (1, 2):
            while len(told) < calls:
                await asyncio.sleep(0.001)
            await machine.reached(started, State.WAITING_SWITCH)
            await machine.time.advance(calls * 1800)
            name = "first" if calls == 1 else "second"
            await machine.signals.set_switch("default", started, name, "yes")
        while len(told) < 4:
            await asyncio.sleep(0.001)
        found = await machine.reached(started, State.WAITING_SWITCH)
        assert found.head.wake - found.head.since == 2 * 3_600_000
        assert told == [False, False, False, True]


async def test_once_is_kept_until_its_step_ends(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app, charged = App(), []

    @app.step("charge")
    async def charge(ctx: Context) -> object:
        await ctx.once("charge", lambda: charged.append(1))
        return "paid" if ctx.retries else RetryLater("1d")

    app.pipeline("p", ["charge", ("util/wait", {"switch": "end"})])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        started = await machine.start("p")
        asleep = await machine.reached(started, State.SLEEPING)
        assert b"once:1:charge" in asleep.extras
        await machine.time.advance(DAY)
        waiting = await machine.reached(started, State.WAITING_SWITCH)
        assert b"once:1:charge" not in waiting.extras
        assert charged == [1]
        await machine.signals.set_switch("", started, "end", True)
        assert (await machine.ended(started)).output == "paid"
