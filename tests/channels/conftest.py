"""Fixtures of the tests of channels."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.channels.helpers import ChannelStore, open_channels
from waystation.store.embedded.server import EmbeddedServer


@pytest.fixture
async def channel_store(store_server: EmbeddedServer) -> AsyncIterator[ChannelStore]:
    """Open a channel service with default settings on the emptied store of this test process."""
    async with open_channels(store_server) as opened:
        yield opened
