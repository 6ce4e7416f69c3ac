"""Shared by all tests: `async def` tests run in an event loop of their own, on uvloop."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path

import pytest
import uvloop

from waystation.settings import Settings
from waystation.testing.station import quick_settings


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs coroutine tests; asynchronous set-up is done by context managers inside them."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings of a private station: no key, any free port, level `memory`."""
    return quick_settings(str(tmp_path))
