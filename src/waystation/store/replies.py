"""What an error reply of the store means for the call that got it."""

from __future__ import annotations

from enum import Enum, auto

from waystation.errors import StoreDamagedError, StoreError, StoreReplyError


class Meaning(Enum):
    """The kinds of error replies. Of all but ERROR it is certain that the call did not run."""

    #: The store does not know the script; send it whole.
    NO_SCRIPT = auto()
    #: The store is loading its data or busy with a script; the same call can be sent again.
    NOT_NOW = auto()
    #: Not this server: it lost its primary, its replicas or its cluster.
    UNAVAILABLE = auto()
    #: This server became a replica: the address may lead to the new primary.
    READ_ONLY = auto()
    #: Another node of the cluster has the slot, for good or for this once.
    MOVED = auto()
    ASK = auto()
    #: Out of memory or disk.
    FULL = auto()
    #: Anything else: an error of this one call.
    ERROR = auto()


_MEANINGS = {
    "ASK": Meaning.ASK,
    "BUSY": Meaning.NOT_NOW,
    "CLUSTERDOWN": Meaning.UNAVAILABLE,
    "LOADING": Meaning.NOT_NOW,
    "MASTERDOWN": Meaning.UNAVAILABLE,
    "MISCONF": Meaning.FULL,
    "MOVED": Meaning.MOVED,
    "NOREPLICAS": Meaning.UNAVAILABLE,
    "NOSCRIPT": Meaning.NO_SCRIPT,
    "OOM": Meaning.FULL,
    "READONLY": Meaning.READ_ONLY,
    "TRYAGAIN": Meaning.NOT_NOW,
}


def meaning(reply: str) -> Meaning:
    """Reads the first word of an error reply."""
    return _MEANINGS.get(reply.partition(" ")[0], Meaning.ERROR)


def reply_error(reply: str) -> StoreError:
    """Return the error for a reply of kind ERROR.

    A script that finds a key of invalid type or value replies `DAMAGED <key>`; the store appends
    the place in the script.
    """
    kind, _, rest = reply.partition(" ")
    if kind == "DAMAGED":
        return StoreDamagedError(key=rest.partition(" ")[0])
    return StoreReplyError(reply)
