"""Stations for the tests of the HTTP door. Tests share them, each with a channel of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.helpers.server import Keys, TopicClient, background_station, make_keys, require_tool
from waystation.config import AuthConfig, Config
from waystation.testing.station import quick_settings

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Guarded:
    """A station that asks for keys, and the keys."""

    url: str
    keys: Keys


@pytest.fixture
def settings(worker_store_settings: Config) -> Config:
    """Return settings of a node on the emptied store of this test process."""
    return worker_store_settings


@pytest.fixture(scope="session")
def open_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A station that asks for no key."""
    with background_station(quick_settings(str(tmp_path_factory.mktemp("open")))) as running:
        yield running.url


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A station that asks for keys."""
    data = tmp_path_factory.mktemp("guarded")
    keys = make_keys(data)
    settings = quick_settings(str(data), auth=AuthConfig(insecure=False))
    with background_station(settings) as running:
        yield Guarded(running.url, keys)


@pytest.fixture
def channel() -> str:
    """The name of a channel that no other test uses."""
    return f"ch-{next(_numbers)}"


#: Nothing but the page itself: no services of the browser's maker, no sandbox that needs rights.
FLAGS = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
    "--no-sandbox",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real Chromium; for slow tests."""
    program = require_tool("chromium")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture
def topic(open_url: str) -> TopicClient:
    """A new topic with the usual options."""
    client = TopicClient(open_url)
    client.create()
    return client
