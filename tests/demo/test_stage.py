"""The stage of the demo: an act that hangs is told, and not by a traceback."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from demo.receiver import Receiver
from demo.stage import DemoFailedError, Stage
from demo.station import DemoStation


@pytest.fixture
def idle_station(tmp_path: Path) -> Iterator[DemoStation]:
    """One that is not started: these acts ask nobody."""
    with Receiver() as receiver:
        yield DemoStation(tmp_path, receiver)


async def test_an_act_that_does_not_end_fails_the_demo_by_its_title(
    idle_station: DemoStation,
) -> None:
    async def hangs(stage: Stage, _: DemoStation) -> None:
        stage.act("a letter that never comes")
        await asyncio.Event().wait()

    stage = Stage(Console(quiet=True))
    with pytest.raises(DemoFailedError, match=r"after 0\.05 s: a letter that never comes"):
        await stage.perform(hangs, idle_station, seconds_max=0.05)


async def test_what_else_runs_out_of_time_is_told_as_it_is(idle_station: DemoStation) -> None:
    async def fails(stage: Stage, _: DemoStation) -> None:
        raise TimeoutError("the store did not answer")

    with pytest.raises(TimeoutError, match="the store did not answer"):
        await Stage(Console(quiet=True)).perform(fails, idle_station)
