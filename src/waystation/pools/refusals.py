"""What a script of a pool says when it writes nothing, as an error."""

from __future__ import annotations

from waystation.errors import (
    KeyBusyError,
    KeyTakenError,
    NotStaleError,
    PoolClosedError,
    PoolFullError,
    PoolMirroredError,
    PoolNotFoundError,
    WaystationError,
    WorkerEvictedError,
    WorkerUnknownError,
)
from waystation.pools.names import Place
from waystation.store.connection import Reply

_REFUSALS: dict[bytes, tuple[type[WaystationError], str]] = {
    b"missing": (PoolNotFoundError, "There is no pool {pool}."),
    b"closed": (PoolClosedError, "Pool {pool} takes nothing new: it is being deleted."),
    b"full": (PoolFullError, "Pool {pool} has no room."),
    b"busy": (KeyBusyError, "That key of pool {pool} has messages."),
    b"taken": (KeyTakenError, "A message of that key is taken; pool {pool} moves it then."),
    b"unknown": (WorkerUnknownError, "Pool {pool} has no such worker; register anew."),
    b"evicted": (WorkerEvictedError, "Pool {pool} has evicted the worker; register anew."),
    b"mirrored": (PoolMirroredError, "Agents serve pool {pool}: other workers need another pool."),
    b"not_stale": (NotStaleError, "That worker of pool {pool} is not stale."),
}


def check(reply: Reply, place: Place) -> list[Reply]:
    """The reply of a script that was not refused."""
    if len(reply) == 1 and isinstance(reply[0], bytes) and reply[0] in _REFUSALS:
        kind, text = _REFUSALS[reply[0]]
        raise kind(text.format(pool=place.pool))
    return list(reply)
