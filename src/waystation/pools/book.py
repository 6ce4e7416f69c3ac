"""The book of pools: what each is now, in the catalogue, in the store, in this process."""

from __future__ import annotations

from waystation.db.definitions import Book
from waystation.errors import PoolNotFoundError
from waystation.pools.definition import Pool, PoolState, decode_pool, encode_pool

ALIVE: tuple[PoolState, ...] = ("active",)
#: States of one that has something in the store.
THERE: tuple[PoolState, ...] = (*ALIVE, "deleting")
EVERY: tuple[PoolState, ...] = (*THERE, "deleted")


class PoolBook(Book[Pool]):
    """Reads and changes pools; their versions and incarnations go on over a deletion."""

    kind = "pool"
    alive = ALIVE

    def encode(self, definition: Pool) -> bytes:
        return encode_pool(definition)

    def decode(self, body: bytes) -> Pool:
        return decode_pool(body)

    def working_copy(self, project: str, name: str) -> str:
        return f"{{pool.{project}.{name}}}:definition"

    def not_found(self, name: str) -> PoolNotFoundError:
        return PoolNotFoundError(f"There is no pool {name}.")
