"""One call of one step, as the machine has it: what it gives in, and what it reads afterwards.

Contexts show it to the step. Once the call is past, or its transaction another's, nothing is
written for it any more: tasks and threads that the step has left behind end with `StepEnded`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from waystation.errors import BusyError, InvalidInputError, StoreError, TooLargeError
from waystation.transactions.step_log import StepLog
from waystation.transactions.switches import Scalar

if TYPE_CHECKING:
    from waystation.transactions.held import Held, Verdict
    from waystation.transactions.record import LogLine
    from waystation.transactions.services import Services

#: What a step may keep by `once`, in all its calls; it is read with every claim.
ONCE_NAMES_MAX = 1000
ONCE_STEP_BYTES_MAX = 4 * 1_048_576
_is_once_name = re.compile(r"[0-9A-Za-z][0-9A-Za-z_./-]{0,62}").fullmatch
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_decode = msgspec.json.Decoder().decode


class StepEnded(BaseException):
    """The step must end at once, without an outcome: what it did is not ours to record any more.

    Not an Exception, so that no `except Exception` of a step takes it for a failure of its own.
    """


class Records(Protocol):
    """What is written for a step while it runs; `Progress` does it."""

    async def once(self, held: Held, place: str, name: str, result: bytes) -> Verdict:
        """Records a result, unless another holds the transaction by now."""
        ...

    async def open_callback(self, held: Held, place: str) -> Verdict:
        """Lets the callback of a step be used from now on, once."""
        ...

    async def report(self, held: Held, progress: bytes) -> Verdict:
        """Puts a progress report in the place of the one before."""
        ...


class TransactionFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a step is told of its transaction; it never changes."""

    id: str
    type: str
    project: str = "default"
    external_id: str = ""
    #: JSON, as it came.
    data_json: bytes = b"null"
    metadata_json: bytes = b"{}"
    deadline_ms: int = 0
    traceparent: str = ""

    @property
    def data(self) -> Any:
        """What the transaction was started with."""
        return _decode(self.data_json)


class StepCall:
    """One call of one step: what its context shows, and what the machine reads afterwards.

    There is one for every call of every step, so it makes nothing that may not be needed.
    """

    __slots__ = (
        "_log",
        "_names",
        "_once_bytes",
        "callback",
        "ended",
        "held",
        "input",
        "now_ms",
        "options",
        "over",
        "place",
        "recorded",
        "records",
        "retries",
        "seen",
        "services",
        "switches",
        "timed_out",
        "transaction",
    )

    def __init__(
        self,
        *,
        transaction: TransactionFacts,
        held: Held,
        place: str,
        records: Records,
        now_ms: Callable[[], int],
        switches: Mapping[str, Scalar] = _NOTHING,
        timed_out: bool = False,
        retries: int = 0,
        recorded: Mapping[str, bytes] = _NOTHING,
        callback: bytes = b"",
        services: Services | None = None,
    ) -> None:
        self.transaction = transaction
        self.held = held
        self.place = place
        self.records = records
        #: The store's time, as far as this process knows it.
        self.now_ms = now_ms
        self.switches = switches
        self.timed_out = timed_out
        self.retries = retries
        #: Results of `once` from calls before this one, by name.
        self.recorded = recorded
        #: `-` once somebody may call back, `+` and what was posted once somebody has; else empty.
        self.callback = callback
        #: What steps of ours reach the world with.
        self.services = services
        #: Set by the step: its options, and its input as its type has it.
        self.options: Mapping[str, Any] = _NOTHING
        self.input: Any = None
        #: Switches that the step looked at, with the value that it saw.
        self.seen: dict[str, Scalar | None] = {}
        #: Why the step had to end; then its outcome counts for nothing.
        self.ended = ""
        #: Whether the call is past; whoever it left behind writes nothing any more.
        self.over = False
        self._names: set[str] | None = None
        self._once_bytes = 0
        self._log: StepLog | None = None

    @property
    def log(self) -> StepLog:
        """What the step has logged, and logs to."""
        if self._log is None:
            self._log = StepLog(self.transaction.id, self.place, self.now_ms)
        return self._log

    @property
    def log_lines(self) -> Sequence[LogLine]:
        """What the step has logged, for the journal."""
        return () if self._log is None else tuple(self._log.lines)

    @property
    def once_names(self) -> Collection[str]:
        """The names that the step has used `once` with."""
        return self._names or ()

    def require_alive(self) -> None:
        """Stops whoever goes on after the step has ended: a thread or a task left behind."""
        if self.ended or self.over:
            raise StepEnded(self.ended or "the step has ended already")

    def begin_once(self, name: str) -> bytes | None:
        """What was recorded under a name; None: nothing yet."""
        self.require_alive()
        if not isinstance(name, str) or _is_once_name(name) is None:
            raise InvalidInputError(
                f"{str(name)[:80]!r} is not a name for once.",
                field="name",
                hint="Use 1 to 63 letters, digits, '_', '.', '/' and '-'.",
            )
        names = self._names = self._names or set()
        if name in names:
            raise InvalidInputError(f"once {name!r} was used twice in one step.", field="name")
        found = self.recorded.get(name)
        if found is None:
            # Before anything happens: what cannot be recorded must not be done.
            self._require_room(names)
        names.add(name)
        return found

    def _require_room(self, names: set[str]) -> None:
        if len(self.recorded.keys() | names) >= ONCE_NAMES_MAX:
            raise InvalidInputError(
                f"A step uses once with at most {ONCE_NAMES_MAX} names.", field="name"
            )
        kept = self._once_bytes + sum(map(len, self.recorded.values()))
        if kept >= ONCE_STEP_BYTES_MAX:
            raise TooLargeError(
                f"The step has kept {kept} bytes by once, and may keep {ONCE_STEP_BYTES_MAX}.",
                field="result",
            )

    async def record_once(self, name: str, result: bytes) -> None:
        """Makes a result durable, or ends the step."""
        self.require_alive()
        self._once_bytes += len(result)
        await self._write(self.records.once(self.held, self.place, name, result))

    async def open_callback(self) -> None:
        """Lets the step be called back, before anybody is told the way; or ends the step."""
        self.require_alive()
        if not self.callback:
            self.callback = b"-"
            await self._write(self.records.open_callback(self.held, self.place))

    async def report(self, progress: bytes) -> None:
        """Writes a progress report, or ends the step."""
        self.require_alive()
        await self._write(self.records.report(self.held, progress))

    async def _write(self, writing: Coroutine[Any, Any, Verdict]) -> None:
        try:
            verdict = await writing
        except (StoreError, BusyError) as error:
            # Whether it was written is unknown, or it was not. To fail the transaction would say
            # more than we know: it is called again, when the hold on it has run out.
            self.ended = f"the store is away: {error}"
            raise StepEnded(self.ended) from error
        if verdict.outcome not in ("done", "known"):
            self.ended = "another holds the transaction by now"
            raise StepEnded(self.ended)
