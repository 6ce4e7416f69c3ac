"""A step: a type, and what is called for it. The book of all steps of a process.

Whatever a step does, exactly one `Outcome` comes of a call; or `StepEnded`, when the transaction is
another's by now. An exception is an internal error: its trace is for the journal, not for clients.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import traceback
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Executor
from typing import Any, Protocol, TypeVar

import msgspec

from waystation.errors import InvalidInputError, NotFiniteError
from waystation.runtime.logging import logger
from waystation.transactions.context import Context
from waystation.transactions.outcomes import Failure, Outcome
from waystation.transactions.step_call import StepEnded

_log = logger("steps")

#: What a step may take unless it says so itself.
TIMEOUT_SECONDS = 180.0
_TRACE_BYTES_MAX = 8192
_TYPE_LENGTH_MAX = 127
_is_type = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]*(/[0-9A-Za-z][0-9A-Za-z_.-]*)*").fullmatch
_encode = msgspec.json.Encoder().encode
_Options = TypeVar("_Options", bound=msgspec.Struct)


class Step(Protocol):
    """What the machine needs of a step."""

    @property
    def type(self) -> str:
        """Its name in pipelines."""
        ...

    @property
    def description(self) -> str:
        """One sentence."""
        ...

    @property
    def pure(self) -> bool:
        """Whether it may be called again without a trace: its commit can wait for the next."""
        ...

    @property
    def in_thread(self) -> bool:
        """Whether it runs in a thread, which goes on when the call is given up."""
        ...

    @property
    def timeout_seconds(self) -> float:
        """What a call may take."""
        ...

    def check(self, options: Mapping[str, Any]) -> None:
        """Raises InvalidInputError for options that it cannot be called with."""
        ...

    async def call(
        self,
        ctx: Context,
        given: bytes,
        options: dict[str, Any],
        *,
        threads: Executor | None = None,
    ) -> Outcome:
        """Calls it. Cancelling the call gives it up: nothing is recorded for it from then on."""
        ...


def require_type(value: object) -> str:
    """Returns a step type, or raises an error that tells the rule."""
    if not isinstance(value, str) or len(value) > _TYPE_LENGTH_MAX or _is_type(value) is None:
        raise InvalidInputError(
            f"{str(value)[:80]!r} is not a type of step.",
            field="type",
            hint="Use letters, digits, '_', '.' and '-' in parts between slashes: refund/pay.",
        )
    return value


class BuiltInStep:
    """A step that comes with us; its options are checked when a pipeline is defined."""

    in_thread = False

    def __init__(
        self,
        step_type: str,
        options: type[_Options],
        run: Callable[[Context, bytes, _Options], Coroutine[Any, Any, Outcome]],
        *,
        pure: bool = False,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self.type = step_type
        self.pure = pure
        self.timeout_seconds = timeout_seconds
        self.description = (inspect.getdoc(run) or "").partition("\n")[0]
        self._options = options
        self._run: Callable[..., Coroutine[Any, Any, Outcome]] = run

    def check(self, options: Mapping[str, Any]) -> None:
        try:
            msgspec.convert(options, self._options)
        except msgspec.ValidationError as error:
            raise InvalidInputError(f"Step {self.type}: {error}.", field="options") from error

    async def call(
        self,
        ctx: Context,
        given: bytes,
        options: dict[str, Any],
        *,
        threads: Executor | None = None,
    ) -> Outcome:
        async def run() -> Outcome:
            return await self._run(ctx, given, msgspec.convert(options, self._options))

        return await guarded(self.type, ctx, run())


class StepBook:
    """All steps that a process serves, by type."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self._steps: dict[str, Step] = {}
        for step in steps:
            if step.type in self._steps:
                raise InvalidInputError(f"There are two steps {step.type}.", field="type")
            self._steps[step.type] = step

    def find(self, step_type: str) -> Step | None:
        """The step of a type; None: this process does not serve it."""
        return self._steps.get(step_type)

    @property
    def steps(self) -> tuple[Step, ...]:
        """All of them, by type."""
        return tuple(self._steps[each] for each in sorted(self._steps))

    @property
    def types(self) -> frozenset[str]:
        """What is served here."""
        return frozenset(self._steps)


# -- Calling ---------------------------------------------------------------------------------


async def guarded(step_type: str, ctx: Context, calling: Coroutine[Any, Any, Outcome]) -> Outcome:
    """One outcome of a call, whatever happens in it."""
    call = ctx.call
    try:
        outcome = await calling
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # Nobody has given the call up: the step awaited something that was cancelled.
        outcome = _broken(step_type, ctx, error)
    except (Exception, SystemExit) as error:
        outcome = _broken(step_type, ctx, error)
    finally:
        call.over = True
    if call.ended:
        # Also where the step has swallowed what told it to end.
        raise StepEnded(call.ended)
    return outcome


def _broken(step_type: str, ctx: Context, error: BaseException) -> Failure:
    told = {
        "error": "Internal error: exception in step.",
        "transactionId": ctx.transaction.id,
        "place": ctx.place,
    }
    note = f"{error.__class__.__name__} in step {step_type}"
    # Not its text, nor its trace, which is in the journal: they may hold a payload.
    last = traceback.extract_tb(error.__traceback__, limit=-1)
    _log.error(
        "a step broke",
        problem=note,
        where=", ".join(f"{each.filename}, line {each.lineno}" for each in last),
        transaction=ctx.transaction.id,
        place=ctx.place,
    )
    if isinstance(error, NotFiniteError):
        # It tells a path, and no value, so clients may read it.
        note = f"{note}: {error.message}"
        told |= {"error": error.message, "code": error.code, "field": error.field}
    return Failure("internal-error", _encode(told), note, _trace(error))


def _trace(error: BaseException) -> str:
    """The end of the trace, from the user's code on: the cause stands last."""
    below = error.__traceback__
    ours = __file__.rpartition("/")[0]
    while below is not None and below.tb_frame.f_code.co_filename.rpartition("/")[0] == ours:
        below = below.tb_next
    text = "".join(traceback.format_exception(type(error), error, below))
    return text.encode(errors="replace")[-_TRACE_BYTES_MAX:].decode(errors="ignore")
