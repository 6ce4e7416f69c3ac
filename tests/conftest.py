"""Fixtures of all tests. Async tests and async fixtures run on uvloop, one loop per test."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path

import hypothesis
import pytest
import redis
import uvloop

from tests.helpers.examples import RAN
from tests.helpers.postgres import PostgresServer, postgres_server
from tests.helpers.store_faults import store_at
from waystation.config import Config, StoreConfig
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.testing.servers import on_cluster
from waystation.testing.station import Serving, quick_settings, serving

# No deadline on a shared machine, and a way to replay.
hypothesis.settings.register_profile("waystation", deadline=None, print_blob=True)
hypothesis.settings.load_profile("waystation")


#: Warnings about resources that the last event loop found open when it closed.
_left_open: list[str] = []
#: The module whose node runs on the shared store until the module ends; empty without one.
_modules_on_store: list[str] = []


class CheckedLoop(uvloop.Loop):
    """An event loop that notes sockets and processes which are still open when it closes."""

    def close(self) -> None:
        # A warning is an error elsewhere; raised while uvloop closes, it would hang forever.
        with warnings.catch_warnings(record=True) as unclosed:
            warnings.simplefilter("always", ResourceWarning)
            super().close()
        _left_open.extend(str(each.message) for each in unclosed)


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run async tests on uvloop."""
    return {"uvloop": CheckedLoop}


@pytest.fixture(autouse=True)
def no_unclosed_resources() -> Iterator[None]:
    """Fail a test that leaves sockets or processes behind."""
    _left_open.clear()
    yield
    assert not _left_open, f"left open: {_left_open}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests marked `single_server` if the store is a cluster."""
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
async def store(store_server: EmbeddedServer) -> AsyncIterator[Store]:
    """Return a client of this test process's store, emptied; its time can be advanced."""
    check_store_is_free()
    async with store_at(store_server.address, test_mode=True) as client:
        await client.call("FLUSHALL", repeatable=True)
        yield client


def check_store_is_free() -> None:
    """Fail a test that would empty the store below the node that the tests of its module share."""
    assert not _modules_on_store, (
        f"The tests of {_modules_on_store[0]} share a node on the store of this test process. "
        "Take own_store_settings."
    )


def settings_on(server: EmbeddedServer, folder: Path) -> Config:
    """Empty this process's store; return settings of a node on it, or on a new cluster."""
    if on_cluster():
        return quick_settings(str(folder))
    with closing(redis.Redis(unix_socket_path=server.address.path)) as client:
        client.flushall()
    url = f"unix://{server.address.path}"
    return quick_settings(str(folder), store=StoreConfig(durability="memory", url=url))


@pytest.fixture
def own_store_settings(tmp_path: Path) -> Config:
    """Return settings of a node that starts its own store: no key, any free port."""
    return quick_settings(str(tmp_path))


@pytest.fixture
def worker_store_settings(store_server: EmbeddedServer, tmp_path: Path) -> Config:
    """Return settings of a node on this test process's emptied store; its files are in `tmp_path`.

    Not for tests that stop, fill or configure the store, or advance its time.
    """
    check_store_is_free()
    return settings_on(store_server, tmp_path)


@pytest.fixture(scope="module")
def module_store_settings(
    store_server: EmbeddedServer,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Config]:
    """Return settings of the one node of a module, on this test process's store, emptied once.

    The other nodes of the module take `own_store_settings`.
    """
    check_store_is_free()
    _modules_on_store.append(request.path.name)
    yield settings_on(store_server, tmp_path_factory.mktemp("module"))
    _modules_on_store.clear()


@pytest.fixture
def settings(own_store_settings: Config) -> Config:
    """Return settings of a node. A folder whose tests can share a store overrides this."""
    return own_store_settings


@pytest.fixture
async def server(settings: Config) -> AsyncIterator[Serving]:
    """Run a node with HTTP in the test's event loop: `.url`, `.node`."""
    async with serving(settings) as running:
        yield running


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Run a PostgreSQL server; the first test of a worker that needs it starts it."""
    with postgres_server() as server:
        yield server
