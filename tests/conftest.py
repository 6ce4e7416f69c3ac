"""Shared by all tests: `async def` tests run in an event loop of their own, on uvloop."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import uvloop

from tests.helpers.examples import RAN
from tests.helpers.postgres import PostgresServer, postgres_server
from waystation.config import Config
from waystation.testing.servers import on_cluster
from waystation.testing.station import quick_settings

# No deadline on a shared machine, and a way to replay.
hypothesis.settings.register_profile("waystation", deadline=None, print_blob=True)
hypothesis.settings.load_profile("waystation")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs coroutine tests; asynchronous set-up is done by context managers inside them."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    try:
        runner.run(pyfuncitem.obj(**arguments))
    finally:
        # Elsewhere such a warning is an error; raised while uvloop closes, it would hang for ever.
        with warnings.catch_warnings(record=True) as unclosed:
            warnings.simplefilter("always", ResourceWarning)
            runner.close()
    assert not unclosed, f"left open: {[str(each.message) for each in unclosed]}"
    return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On a cluster, leaves out what speaks of a server by itself; pytest tells how many."""
    if on_cluster():
        alone = [item for item in items if item.get_closest_marker("single_server")]
        config.hook.pytest_deselected(items=alone)
        items[:] = [item for item in items if item not in alone]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report how many examples each model test ran, so that a run that tested less shows."""
    ran = [
        (report.nodeid, value)
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, value in report.user_properties
        if name == RAN
    ]
    if ran:
        terminalreporter.section("examples of model tests")
        for test, count in sorted(ran):
            terminalreporter.write_line(f"{count:>6} {test}")


@pytest.fixture
def settings(tmp_path: Path) -> Config:
    """Config of a private station: no key, any free port, level `memory`."""
    return quick_settings(str(tmp_path))


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server, started by the first test of a process that asks for it."""
    with postgres_server() as server:
        yield server
