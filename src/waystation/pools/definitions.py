"""Stored definitions of pools."""

from __future__ import annotations

from waystation.db.definitions import Definitions
from waystation.errors import PoolNotFoundError
from waystation.pools.definition import Pool, PoolState, decode_pool, encode_pool

ALIVE: tuple[PoolState, ...] = ("active",)
#: States of a pool that has keys in the store.
THERE: tuple[PoolState, ...] = (*ALIVE, "deleting")
EVERY: tuple[PoolState, ...] = (*THERE, "deleted")


class PoolDefinitions(Definitions[Pool]):
    """Definitions of pools. Versions and incarnations grow across a deletion."""

    kind = "pool"
    usable_states = ALIVE

    def encode(self, definition: Pool) -> bytes:
        return encode_pool(definition)

    def decode(self, body: bytes) -> Pool:
        return decode_pool(body)

    def cache_key(self, project: str, name: str) -> str:
        return f"{{pool.{project}.{name}}}:definition"

    def not_found(self, name: str) -> PoolNotFoundError:
        return PoolNotFoundError(f"There is no pool {name}.")
