"""The book of operations: all of a subscription that are not forgotten yet, with their states.

It is in the store alone, in the slot of the subscription. How far an operation is in a shard is
noted there; states are changed here, by a script, so that of two who change one at once both see
what came of it.
"""

from __future__ import annotations

import msgspec

from waystation.errors import OperationNotFoundError
from waystation.store.client import Store
from waystation.store.connection import Reply
from waystation.store.scripts import script
from waystation.subscriptions import names
from waystation.subscriptions.operation import ENDED, Kept, Plan
from waystation.subscriptions.states import OperationState

_BEGIN = script(__package__, "operation_begin")
_MOVE = script(__package__, "operation_move")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Plan).decode

#: What leads to a state; only what has not ended goes on.
_FROM = {
    OperationState.BEGUN: (OperationState.PAUSED,),
    OperationState.PAUSED: (OperationState.BEGUN,),
    OperationState.CANCELLED: (OperationState.BEGUN, OperationState.PAUSED),
    OperationState.DONE: (OperationState.BEGUN, OperationState.PAUSED),
}


class OperationBook:
    """Enters, reads, changes and forgets operations."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def enter(self, project: str, name: str, operation: str, plan: Plan) -> Kept:
        """Enters an operation, which begins by that."""
        value = await self._store.run(_BEGIN, _keys(project, name), [operation, _encode(plan)])
        return _kept(operation, value)

    async def move(self, project: str, name: str, operation: str, state: OperationState) -> Kept:
        """Brings one into another state, if that can be; as it is then."""
        words: list[str | int] = [operation, state, int(state in ENDED), *_FROM[state]]
        value = await self._store.run(_MOVE, _keys(project, name), words)
        if not value:
            raise _not_found(operation)
        return _kept(operation, value)

    async def get(self, project: str, name: str, operation: str) -> Kept:
        """One operation; OperationNotFoundError if it is none, or forgotten."""
        key = names.operations(project, name)
        value = await self._store.call("HGET", key, operation, repeatable=True)
        if value is None:
            raise _not_found(operation)
        return _kept(operation, value)

    async def all(self, project: str, name: str) -> list[Kept]:
        """All operations, the newest first."""
        key = names.operations(project, name)
        pairs = await self._store.call("HGETALL", key, repeatable=True)
        found = [_kept(pairs[i].decode(), pairs[i + 1]) for i in range(0, len(pairs), 2)]
        return sorted(found, key=lambda kept: kept.id, reverse=True)

    async def open(self, project: str, name: str) -> list[Kept]:
        """Those that have not ended, the oldest first."""
        operations, open_ = _keys(project, name)
        ids = sorted(await self._store.call("SMEMBERS", open_, repeatable=True))
        if not ids:
            return []
        values = await self._store.call("HMGET", operations, *ids, repeatable=True)
        pairs = zip(ids, values, strict=True)
        return [_kept(each.decode(), value) for each, value in pairs if value is not None]

    async def forget(self, project: str, name: str, operation: str) -> None:
        """Forgets one that has ended."""
        key = names.operations(project, name)
        await self._store.call("HDEL", key, operation, repeatable=True)


def _keys(project: str, name: str) -> tuple[str, str]:
    return names.operations(project, name), names.open_operations(project, name)


def _kept(operation: str, value: Reply) -> Kept:
    state, begun_ms, ended_ms, plan = value.split(b" ", 3)
    return Kept(
        id=operation,
        plan=_decode(plan),
        state=OperationState(state.decode()),
        begun_ms=int(begun_ms),
        ended_ms=int(ended_ms),
    )


def _not_found(operation: str) -> OperationNotFoundError:
    return OperationNotFoundError(f"There is no operation {operation[:80]}.")
