"""Operations of subscriptions for the asynchronous client: redrive, skip, purge and reset."""

from __future__ import annotations

from typing import Any

from waystation.client.async_caller import AsyncCaller
from waystation.client.async_transport import AsyncTransport
from waystation.client.async_waiting import AsyncWaiting
from waystation.client.messages import decode_answer
from waystation.client.subscription_requests import path_of
from waystation.client.subscriptions import OperationInfo, Progress
from waystation.errors import WaitTimeoutError
from waystation.runtime.durations import Duration
from waystation.runtime.json_values import encode_json


class AsyncOperation:
    """An operation that was begun, or is there; a dry run has counted, and is nothing more."""

    def __init__(self, operations: AsyncOperations, subscription: str, info: OperationInfo) -> None:
        self._operations = operations
        self.subscription = subscription
        #: As it was when it was last looked at.
        self.info = info

    def __repr__(self) -> str:
        return f"<Operation {self.id or 'dry run'} of {self.subscription} [{self.state}]>"

    @property
    def id(self) -> str:
        """Its id; empty for a dry run."""
        return self.info.id

    @property
    def count(self) -> int:
        """Messages: that it is about, in a dry run; else that it has marked, or settled."""
        return self.info.count

    @property
    def state(self) -> str:
        """`begun`, `paused`, `cancelled` or `done`."""
        return self.info.state

    @property
    def ended(self) -> bool:
        """Whether it does nothing any more."""
        return self.info.ended

    @property
    def progress(self) -> Progress:
        """How far it is."""
        return self.info.progress

    async def get(self) -> OperationInfo:
        """How it stands now."""
        return await self._told("GET", "")

    async def wait(self, at_most: Duration | None = None) -> OperationInfo:
        """Wait until the operation has ended and return its final state.

        Raise WaitTimeoutError if it takes longer than `at_most`; None waits without a limit.
        """
        if not self.info.ended:
            self.info = await self._operations.wait_for(self.subscription, self.id, at_most)
        return self.info

    async def pause(self) -> OperationInfo:
        """Marks nothing more for now; what is marked goes on."""
        return await self._told("POST", "/pause")

    async def resume(self) -> OperationInfo:
        """Goes on where it was."""
        return await self._told("POST", "/resume")

    async def cancel(self) -> OperationInfo:
        """Marks nothing more; what is marked goes on."""
        return await self._told("POST", "/cancel")

    async def _told(self, method: str, verb: str) -> OperationInfo:
        if self.id:
            path = path_of(self.subscription, "operations", self.id) + verb
            self.info = await self._operations.look_at(method, path)
        return self.info


class AsyncOperations:
    """Begins and finds operations; the verbs are those of `subscriptions`."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._caller = AsyncCaller(transport)
        self._waiting = AsyncWaiting(transport)

    async def begin(self, name: str, verb: str, asked: dict[str, Any]) -> AsyncOperation:
        """Begins one; a dry run counts."""
        body, path = encode_json(asked), f"{path_of(name)}/{verb}"
        answer = await self._caller.call("POST", path, body=body, repeatable=False)
        return AsyncOperation(self, name, decode_answer(answer, OperationInfo))

    async def open(self, name: str, operation: str) -> AsyncOperation:
        """One that is there."""
        info = await self.look_at("GET", path_of(name, "operations", operation))
        return AsyncOperation(self, name, info)

    async def look_at(self, method: str, path: str) -> OperationInfo:
        """One as a path of it tells."""
        return decode_answer(await self._caller.call(method, path), OperationInfo)

    async def wait_for(self, name: str, operation: str, at_most: Duration | None) -> OperationInfo:
        """One when it has ended."""
        path = path_of(name, "operations", operation)
        async for answer in self._waiting.answers(path, {}, at_most):
            found = decode_answer(answer, OperationInfo)
            if found.ended:
                return found
        raise WaitTimeoutError(
            f"Operation {operation} is {found.state} after {at_most}.", last=found
        )
