"""The errors of pools; the tree that they belong to is in `errors.py`."""

from __future__ import annotations

from waystation.errors import BusyError, ConflictError, InvalidInputError, NotFoundError


class PoolNotFoundError(NotFoundError):
    """There is no such pool in the project."""

    code = "pool.not-found"


class PoolClosedError(ConflictError):
    """A pool that is being deleted takes no message and no worker; nothing was written."""

    code = "pool.closed"


class PoolFullError(BusyError):
    """A pool has as many messages, bytes or keys as it may have; nothing was written."""

    code = "pool.full"


class PoolMirroredError(ConflictError):
    """Agents with the redis-events plugin serve the pool; no other worker can register."""

    code = "pool.mirrored"


class PoolCannotAnswerError(InvalidInputError):
    """A caller waits for an answer of a mirrored pool whose agents cannot answer."""

    code = "pool.cannot-answer"


class MirrorTakenError(ConflictError):
    """Agents of a store can serve one pool, and another is it; nothing was written."""

    code = "pool.mirror-taken"


class KeyInvalidError(InvalidInputError):
    """A recipient key is empty, too long, or has letters that cannot be printed."""

    code = "pool.key-invalid"


class KeyBusyError(ConflictError):
    """A key cannot be forgotten while it has messages; nothing was written."""

    code = "pool.key-busy"


class KeyTakenError(ConflictError):
    """A key cannot be moved while its worker has a message of it; nothing was written."""

    code = "pool.key-taken"


class WorkerUnknownError(NotFoundError):
    """A worker is not registered, or by another session than the caller's: register anew."""

    code = "pool.worker-unknown"


class WorkerEvictedError(ConflictError):
    """A worker was not heard of while messages waited, and its keys were given to others.

    It gets keys again when it has registered anew.
    """

    code = "pool.worker-evicted"


class WorkersFullError(BusyError):
    """A pool has as many workers as it may have; nothing was written."""

    code = "pool.workers-full"


class NotStaleError(ConflictError):
    """The keys of a worker were to be moved because it is stale, and it is not."""

    code = "pool.not-stale"
