"""What a step sees of its transaction, and the two things it may write while it runs.

Switches, and whether a wait has timed out, are those of the moment at which the transaction was
claimed: whatever a step asks, it gets one answer, and takes one branch.

`once` promises: its result is durable before it is used; a step that is called again gets the
recorded result, and `fn` is not called. `fn` runs again only if the process dies, or loses its
hold, between its return and the record. It does not promise that nothing happens twice outside:
give `ctx.idempotency_key` to whoever can tell a repetition.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import CancelledError as FutureCancelled
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from waystation.errors import TooLargeError
from waystation.runtime.decoding import decode_json
from waystation.runtime.json_values import encode_json
from waystation.transactions.outcomes import require_switch
from waystation.transactions.step_call import StepCall, StepEnded, TransactionFacts
from waystation.transactions.step_log import StepLog
from waystation.transactions.switches import Scalar

_T = TypeVar("_T")

#: What `once` keeps of a result, as JSON.
ONCE_BYTES_MAX = 262_144
_decode = msgspec.json.Decoder().decode


class _View:
    """What both kinds of context show."""

    def __init__(self, call: StepCall) -> None:
        self._call = call

    @property
    def transaction(self) -> TransactionFacts:
        """Id, type, external id and data of the transaction."""
        return self._call.transaction

    @property
    def metadata(self) -> dict[str, Any]:
        """What came beside the data."""
        found: dict[str, Any] = _decode(self._call.transaction.metadata_json)
        return found

    @property
    def input(self) -> Any:
        """The input, as the step's type has it."""
        return self._call.input

    @property
    def options(self) -> Mapping[str, Any]:
        """What the pipeline says beside the type of the step; it is the definition's, not yours."""
        return MappingProxyType(dict(self._call.options))

    @property
    def place(self) -> str:
        """Where in the pipeline: `2`, in a child of it `2.1`."""
        return self._call.place

    @property
    def timed_out(self) -> bool:
        """Whether the `at_most` of the step's wait has passed."""
        return self._call.timed_out

    @property
    def retries(self) -> int:
        """How often the step has asked to be called again."""
        return self._call.retries

    @property
    def log(self) -> StepLog:
        """Writes to the transaction's journal."""
        return self._call.log

    @property
    def deadline(self) -> datetime | None:
        """When the transaction ends, done or not."""
        deadline_ms = self._call.transaction.deadline_ms
        return datetime.fromtimestamp(deadline_ms / 1000, UTC) if deadline_ms else None

    @property
    def idempotency_key(self) -> str:
        """The same at every call of this step in this transaction, and another everywhere else."""
        call = self._call
        return idempotency_key_of(call.transaction.id, call.place)

    def switch(self, name: str) -> Scalar | None:
        """The value of a switch; None while nobody has set it."""
        value = self._call.switches.get(require_switch(name))
        self._call.seen[name] = value
        return value

    @property
    def switches(self) -> dict[str, Scalar]:
        """All switches that are set."""
        self._call.seen.update(self._call.switches)
        return dict(self._call.switches)


class Context(_View):
    """What an async step sees."""

    @property
    def call(self) -> StepCall:
        """For the machine: what became of the call."""
        return self._call

    async def once(
        self, name: str, fn: Callable[[], Awaitable[_T] | _T], *, result_type: Any = Any
    ) -> Any:
        """Calls `fn` unless its result is recorded; returns the recorded result as its type.

        `fn` may be async. What comes back is what JSON keeps of the result, now and at every
        later call of the step: without a type a struct comes back as a dict.
        """
        packed = self._call.begin_once(name)
        if packed is None:
            result = fn()
            packed = _pack(name, await result if inspect.isawaitable(result) else result)
            await self._call.record_once(name, packed)
        return decode_json(packed, result_type)

    async def progress(self, report: object) -> None:
        """Tells clients how far the transaction is; the newest report counts."""
        await self._call.report(encode_json(report, field="report"))


class BlockingContext(_View):
    """What a plain step sees, which runs in a thread: the same, without `await`."""

    def __init__(self, call: StepCall, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(call)
        self._loop = loop

    def once(self, name: str, fn: Callable[[], object], *, result_type: Any = Any) -> Any:
        """As `Context.once`; `fn` runs in this thread."""
        packed = self._call.begin_once(name)
        if packed is None:
            packed = _pack(name, fn())
            self._wait_for(self._call.record_once(name, packed))
        return decode_json(packed, result_type)

    def progress(self, report: object) -> None:
        """As `Context.progress`."""
        packed = encode_json(report, field="report")
        self._call.require_alive()
        self._wait_for(self._call.report(packed))

    def _wait_for(self, writing: Coroutine[Any, Any, None]) -> None:
        try:
            future = asyncio.run_coroutine_threadsafe(writing, self._loop)
        except RuntimeError as error:
            writing.close()
            raise StepEnded("the process is ending") from error
        try:
            future.result()
        except FutureCancelled as error:
            # Of a stopping event loop. It is an Exception, which the step could take for its own.
            raise StepEnded("the process is ending") from error


def _pack(name: str, result: object) -> bytes:
    packed = encode_json(result, field=f"once {name}")
    if len(packed) > ONCE_BYTES_MAX:
        raise TooLargeError(
            f"The result of once {name!r} has {len(packed)} bytes; {ONCE_BYTES_MAX} are kept.",
            field="result",
        )
    return packed


def idempotency_key_of(transaction_id: str, place: str) -> str:
    """Return the idempotency key of a step at a place of a transaction."""
    return hashlib.sha256(f"{transaction_id} {place}".encode()).hexdigest()
