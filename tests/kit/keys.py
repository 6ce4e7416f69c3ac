"""Keys of every kind, put into the catalogue of a station before it starts."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from waystation.access import Scope, new_key
from waystation.catalogue import ProjectRecord, SqliteCatalogue
from waystation.runtime.ids import RandomIdentity

HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Keys:
    """The texts of the keys. Those without another word belong to project `default`."""

    admin: str
    write: str
    read: str
    expired: str
    revoked: str
    shop_admin: str
    shop_write: str
    #: In the right form, and of nobody.
    unknown: str = f"ws_{'0' * 16}_{'0' * 48}"


def make_keys(data: Path) -> Keys:
    """Writes project `shop` and the keys into the catalogue of the data directory `data`."""
    return asyncio.run(_make_keys(data))


async def _make_keys(data: Path) -> Keys:
    catalogue = SqliteCatalogue(data / "catalogue.db")
    await catalogue.open()
    now_ms = time.time_ns() // 1_000_000

    async def make(scope: Scope, *, project: str = "default", **more: int) -> tuple[str, str]:
        text, record = new_key(
            RandomIdentity(), project=project, scope=scope, label="test", now_ms=now_ms, **more
        )
        await catalogue.add_key(record)
        return text, record.id

    try:
        await catalogue.add_project(ProjectRecord(name="shop", created_ms=now_ms))
        revoked, revoked_id = await make(Scope.ADMIN)
        await catalogue.revoke_key("default", revoked_id, now_ms=now_ms)
        return Keys(
            admin=(await make(Scope.ADMIN))[0],
            write=(await make(Scope.WRITE))[0],
            read=(await make(Scope.READ))[0],
            expired=(await make(Scope.ADMIN, expires_ms=now_ms - HOUR_MS))[0],
            revoked=revoked,
            shop_admin=(await make(Scope.ADMIN, project="shop"))[0],
            shop_write=(await make(Scope.WRITE, project="shop"))[0],
        )
    finally:
        await catalogue.close()
