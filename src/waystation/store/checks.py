"""Start-up checks: a store that would lose data is refused with a reason, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass

from waystation.errors import StoreRefusedError, StoreReplyError
from waystation.settings import Durability
from waystation.store import keys
from waystation.store.client import Store

#: The oldest server whose scripts and commands we use: EXPIRE GT and `#!lua` came with 7.0.
VERSION_MIN = (7, 0)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a store says of itself."""

    version: str
    #: Redis' version number, which Valkey keeps telling for its clients.
    compatible: tuple[int, ...]
    eviction_policy: str
    append_only: bool
    #: `always`, `everysec`, `no`, or empty when the store does not tell.
    fsync: str
    #: Whether fsyncs are left out while the append-only file is rewritten.
    fsync_pauses: bool = False
    #: What the store says to a publish of ours; empty when it lets us.
    publish_problem: str = ""


async def read_facts(store: Store) -> Facts:
    """Asks INFO, and CONFIG where that is allowed."""
    info = _parse_info(await store.call("INFO", "everything", repeatable=True))
    config: dict[str, str] = {}
    try:
        pairs = await store.call("CONFIG", "GET", "*append*", repeatable=True)
        words = [word.decode() for word in pairs]
        config = dict(zip(words[::2], words[1::2], strict=True))
    except StoreReplyError:
        # Hosted stores often hide CONFIG; INFO then has to do.
        pass
    return Facts(
        version=info.get("valkey_version") or info.get("redis_version", "?"),
        compatible=tuple(int(part) for part in info.get("redis_version", "0").split(".")[:2]),
        eviction_policy=info.get("maxmemory_policy", "noeviction"),
        append_only=info.get("aof_enabled") == "1",
        fsync=config.get("appendfsync", ""),
        fsync_pauses=config.get("no-appendfsync-on-rewrite") == "yes",
        publish_problem=await _publish_problem(store),
    )


def check_facts(facts: Facts, *, durability: Durability, ephemeral: bool) -> None:
    """Raises StoreRefusedError with the reason and the way out."""
    if facts.compatible < VERSION_MIN:
        raise StoreRefusedError(
            f"The store is version {facts.version}.", hint="Redis 7.0 or any Valkey is needed."
        )
    if facts.eviction_policy != "noeviction":
        raise StoreRefusedError(
            f"The store evicts keys when memory is short (maxmemory-policy "
            f"{facts.eviction_policy}): accepted messages would vanish.",
            hint="Set maxmemory-policy noeviction.",
        )
    if not facts.append_only and not ephemeral:
        raise StoreRefusedError(
            "The store keeps nothing over a restart (appendonly no).",
            hint="Set appendonly yes, or say --ephemeral if losing everything is acceptable.",
        )
    _check_durability(facts, durability=durability, ephemeral=ephemeral)
    if facts.publish_problem:
        raise StoreRefusedError(
            f"The store does not let us publish wake-ups: {facts.publish_problem}",
            hint="Give the store's user its channels: ACL SETUSER … &*.",
        )


def _check_durability(facts: Facts, *, durability: Durability, ephemeral: bool) -> None:
    if durability == "disk":
        found = f"appendfsync {facts.fsync}" if facts.fsync else "it does not tell its appendfsync"
        if not facts.append_only:
            found = "appendonly no"
        elif facts.fsync_pauses:
            found = "no-appendfsync-on-rewrite yes"
        elif facts.fsync == "always":
            return
        raise StoreRefusedError(
            f"Durability 'disk' promises an fsync before every reply, but {found}.",
            hint="Set appendfsync always on the store, or ask for --durability memory.",
        )
    if facts.fsync == "no" and facts.append_only and not ephemeral:
        raise StoreRefusedError(
            "Durability 'memory' promises to lose about a second at most, but appendfsync no.",
            hint="Set appendfsync everysec, or say --ephemeral.",
        )


async def _publish_problem(store: Store) -> str:
    """Tries it: users of the store made by ACL may have every command and still no channel."""
    try:
        await store.call("PUBLISH", keys.channel_topic("{waystation}"), "probe", repeatable=True)
    except StoreReplyError as error:
        return error.reply
    return ""


def _parse_info(reply: bytes) -> dict[str, str]:
    lines = reply.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))
