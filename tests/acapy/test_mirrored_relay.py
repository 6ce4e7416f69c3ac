"""A relay that agents serve: when it starts, and when it says why it does not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from waystation.acapy_settings import DoorRule
from waystation.errors import SettingsError
from waystation.pool_errors import MirrorTakenError
from waystation.relay.opening import open_relay
from waystation.settings import Settings


def relaying(settings: Settings, **more: Any) -> Settings:
    doors = (DoorRule("http", "127.0.0.1", 0),)
    relay = msgspec.structs.replace(settings.relay, doors=doors, **more)
    return msgspec.structs.replace(settings, relay=relay)


async def test_a_relay_makes_its_pool_mirrored_if_it_is_told_so(settings: Settings) -> None:
    async with open_relay(relaying(settings, mirror=True)) as running:
        head = "{p.default.agents}:head"
        assert await running.opened.store.call("HEXISTS", head, "mirrored") == 1
    async with open_relay(relaying(settings)):
        pass  # As the pool is, whatever this one would have made.


async def test_a_pool_that_was_made_without_a_mirror_is_refused(settings: Settings) -> None:
    async with open_relay(relaying(settings)) as running:
        assert await running.opened.store.call("EXISTS", "{waystation.mirror}:lease") == 0
    with pytest.raises(SettingsError, match="was made without a mirror"):
        async with open_relay(relaying(settings, mirror=True)):
            pass


async def test_a_second_mirrored_pool_of_a_store_is_refused(settings: Settings) -> None:
    async with open_relay(relaying(settings, mirror=True)):
        pass
    with pytest.raises(MirrorTakenError, match="agents of project default"):
        async with open_relay(relaying(settings, mirror=True, pool="others")):
            pass
