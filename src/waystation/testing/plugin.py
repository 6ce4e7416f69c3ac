"""pytest fixtures, found by pytest itself once Waystation is installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from waystation.store.embedded.server import EmbeddedServer
    from waystation.testing.station import Station

# Imports are inside: a test run that uses none of this must not pay for it.


@pytest.fixture(scope="session")
def store_server() -> Iterator[EmbeddedServer]:
    """A private store, one per test worker. Tests share it: use names of your own, or flush."""
    from waystation.testing.servers import private_server  # noqa: PLC0415

    with private_server() as server:
        yield server


@pytest.fixture(scope="session")
def _session_station() -> Iterator[Station]:
    from waystation.testing.station import Station  # noqa: PLC0415

    with Station() as station:
        yield station


@pytest.fixture
def station(_session_station: Station) -> Station:
    """A whole station with a time machine, empty at the start of each test."""
    _session_station.flush()
    return _session_station
