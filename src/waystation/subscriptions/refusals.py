"""What a script of a shard says when it writes nothing, as an error."""

from __future__ import annotations

from waystation.errors import ShardFrozenError, ShardLostError
from waystation.store.connection import Reply
from waystation.subscriptions.names import Place

_REFUSALS = {
    b"refused": "is not held by the caller any more",
    b"missing": "is not there",
}


def check(reply: Reply, place: Place) -> list[Reply]:
    """The reply of a script that was not refused."""
    if len(reply) == 1 and isinstance(reply[0], bytes):
        name = f"Shard {place.shard} of subscription {place.subscription}"
        if reply[0] == b"frozen":
            raise ShardFrozenError(f"{name} takes nothing: it is frozen.")
        if (why := _REFUSALS.get(reply[0])) is not None:
            raise ShardLostError(f"{name} {why}.")
    return list(reply)
