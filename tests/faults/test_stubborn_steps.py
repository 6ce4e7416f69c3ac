"""SIGTERM with a step under way that does not hear: the process ends all the same (F-34).

A bare `except` in a loop is enough: the step takes being given up for one more failure. What it
held is given back, and runs elsewhere.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cli.conftest import running_station
from waystation import Waystation

APP = """
import asyncio
import time

from waystation import App

app = App()


@app.step("step/deaf")
async def deaf(ctx):
    while True:
        try:
            await asyncio.sleep(1)
        except:
            pass


@app.step("step/thread")
def thread(ctx):
    time.sleep(60)


app.pipeline("deaf", ["step/deaf"])
app.pipeline("thread", ["step/thread"])
"""
CONFIG = """
[transactions]
grace_seconds = 0.2
"""
ARGUMENTS = ("dev", "--port", "0", "--data", "data")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["deaf", "thread"])
def test_a_step_that_does_not_hear_keeps_no_process_from_ending(tmp_path: Path, kind: str) -> None:
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "waystation.toml").write_text(CONFIG)
    with running_station(tmp_path, *ARGUMENTS, "--app", "shop:app") as said:
        with Waystation(said["url"]) as ws:
            started = ws.transactions.start(kind).id
            while ws.transactions.why(started).code != "running":
                pass
        said["process"].send_signal(signal.SIGTERM)
        assert said["process"].wait(timeout=15) == 0
    with running_station(tmp_path, *ARGUMENTS) as said, Waystation(said["url"]) as ws:
        why = ws.transactions.why(started)
        assert why.code in ("queued", "no_node_for_step", "retrying"), "it was given back"
        assert "lost" not in why.text, "and is no suspect"
