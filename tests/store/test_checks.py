"""Start-up checks: a store that would lose data is refused with the reason and the remedy."""

from __future__ import annotations

import pytest

from tests.helpers.store_faults import peer_that, plain_server, store_at
from waystation.config import Config, StoreConfig
from waystation.errors import SettingsError, StoreRefusedError, StoreUnavailableError
from waystation.runtime.clock import Clock
from waystation.store.opening import check_server, open_store, read_server_facts
from waystation.types.message import Durability

ALWAYS = ("--appendonly", "yes", "--appendfsync", "always")


async def refusal(
    *options: str, durability: Durability = "memory", ephemeral: bool = False, login: str = ""
) -> str:
    """Return the error of opening a server with these options; empty if it opens."""
    with plain_server(*options) as server:
        url = f"unix://{login}{server.address.path}"
        store = StoreConfig(url=url, durability=durability, ephemeral=ephemeral)
        try:
            opened = await open_store(Config(store=store), clock=Clock())
        except StoreRefusedError as error:
            return str(error)
        await opened.close()
        return ""


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
async def test_open_store_that_evicts_keys_is_refused(policy: str) -> None:
    # F-21: accepted data must not be evicted.
    said = await refusal("--appendonly", "yes", "--maxmemory-policy", policy)
    assert f"maxmemory-policy {policy}" in said
    assert "Set maxmemory-policy noeviction on the store." in said


async def test_open_store_without_persistence_requires_ephemeral() -> None:
    said = await refusal("--appendonly", "no")
    assert "loses all data at a restart (appendonly no)" in said
    assert "--ephemeral" in said
    assert not await refusal("--appendonly", "no", ephemeral=True)


async def test_open_store_with_sync_every_second_refuses_durability_disk() -> None:
    options = ("--appendonly", "yes", "--appendfsync", "everysec")
    said = await refusal(*options, durability="disk")
    assert "appendfsync everysec" in said
    assert "Set appendfsync always" in said
    assert not await refusal(*options, durability="memory")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--appendonly", "no"), "appendonly no"),
        (
            (*ALWAYS, "--no-appendfsync-on-rewrite", "yes"),
            "no-appendfsync-on-rewrite yes",
        ),
    ],
    ids=["without a file", "with pauses"],
)
async def test_open_store_with_replies_before_fsync_refuses_durability_disk(
    options: tuple[str, ...], why: str
) -> None:
    said = await refusal(*options, durability="disk", ephemeral=True)
    assert f"needs an fsync before every reply, but the store has {why}" in said


async def test_open_store_without_fsync_requires_ephemeral() -> None:
    options = ("--appendonly", "yes", "--appendfsync", "no")
    assert "but the store has appendfsync no" in await refusal(*options)
    assert not await refusal(*options, ephemeral=True)


async def test_open_store_as_user_without_publish_is_refused() -> None:
    anna = ("--appendonly", "yes", "--user", "anna", "on", ">hush", "~*", "+@all")
    said = await refusal(*anna, "resetchannels", login="anna:hush@")
    assert "refuses to publish wake-ups: NOPERM" in said
    assert "hush" not in said
    assert not await refusal(*anna, "allchannels", login="anna:hush@")


async def test_open_store_with_fsync_before_replies_accepts_durability_disk() -> None:
    assert not await refusal(*ALWAYS, durability="disk")


async def test_open_store_with_hidden_settings_refuses_durability_disk() -> None:
    options = (*ALWAYS, "--rename-command", "CONFIG", "")
    assert "does not show its appendfsync" in await refusal(*options, durability="disk")
    # Durability `memory` needs only the facts that INFO reports.
    assert not await refusal(*options, durability="memory")


async def test_check_server_of_old_version_is_refused() -> None:
    info = b"redis_version:6.2.14\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n"

    def answer(command: list[bytes]) -> bytes | None:
        return b"$%d\r\n%b" % (len(info), info) if command[0] == b"INFO" else b"-ERR unknown"

    def shake_hands(command: list[bytes]) -> bytes | None:
        return None if command[0] in (b"CLIENT", b"SCRIPT") else answer(command)

    async with peer_that(shake_hands) as address, store_at(address) as store:
        (facts,) = await read_server_facts(store)
    with pytest.raises(StoreRefusedError, match=r"version 6\.2\.14.*Redis 7\.0 or later"):
        check_server(facts, durability="memory", ephemeral=False)


async def test_open_store_without_server_raises_unavailable() -> None:
    store = StoreConfig(url="redis://127.0.0.1:1", call_seconds_max=0.2)
    with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1:1 is unavailable"):
        await open_store(Config(store=store), clock=Clock())


async def test_open_store_by_url_with_time_machine_is_refused() -> None:
    wanted = Config(store=StoreConfig(url="redis://127.0.0.1:1"), time_machine=True)
    with pytest.raises(SettingsError, match="works only with the embedded store"):
        await open_store(wanted, clock=Clock())
