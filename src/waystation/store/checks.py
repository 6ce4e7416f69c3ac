"""Start-up checks: a store that would lose data is refused with a reason, before anything runs."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from waystation.errors import StoreRefusedError, StoreReplyError
from waystation.store.client import Store
from waystation.types.message import Durability

#: The oldest server whose scripts and commands we use: EXPIRE GT and `#!lua` came with 7.0.
VERSION_MIN = (7, 0)

#: A pub/sub topic like those of channels, so that the check meets the same ACL rules.
_PROBE_TOPIC = "dsps.c.{waystation}"


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
    #: A node of a cluster, while our address leads to a server by itself.
    unexpected_cluster: bool = False


async def read_facts(store: Store) -> list[Facts]:
    """Asks every server for INFO, and for CONFIG where that is allowed."""
    told = await store.call_each("INFO", "everything")
    configs: dict[str, list[bytes]] = {}
    # Hosted stores often hide CONFIG; INFO then has to do.
    with contextlib.suppress(StoreReplyError):
        configs = await store.call_each("CONFIG", "GET", "*append*")
    publish_problem = await _publish_problem(store)
    alone = store.address.cluster is None
    return [
        _facts(parse_info(info), configs.get(node, []), publish_problem, alone=alone)
        for node, info in told.items()
    ]


def _facts(info: dict[str, str], pairs: list[bytes], publish_problem: str, *, alone: bool) -> Facts:
    words = [word.decode() for word in pairs]
    config = dict(zip(words[::2], words[1::2], strict=True))
    return Facts(
        version=info.get("valkey_version") or info.get("redis_version", "?"),
        compatible=tuple(int(part) for part in info.get("redis_version", "0").split(".")[:2]),
        eviction_policy=info.get("maxmemory_policy", "noeviction"),
        append_only=info.get("aof_enabled") == "1",
        fsync=config.get("appendfsync", ""),
        fsync_pauses=config.get("no-appendfsync-on-rewrite") == "yes",
        publish_problem=publish_problem,
        unexpected_cluster=alone and info.get("cluster_enabled") == "1",
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
    if facts.unexpected_cluster:
        raise StoreRefusedError(
            "The store is a node of a cluster, and has a part of the keys alone.",
            hint="Write redis+cluster://host:port, with any of its nodes.",
        )
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
        await store.call("PUBLISH", _PROBE_TOPIC, "probe", repeatable=True)
    except StoreReplyError as error:
        return error.reply
    return ""


def parse_info(reply: bytes) -> dict[str, str]:
    """Return the fields of an answer to INFO."""
    lines = reply.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))
