"""A user's step: a function, whose annotations say what it takes and gives.

It is `(ctx)` or `(ctx, input)`. The input is read as the type of its second parameter; a step whose
output its own return type could not read is at fault, not the next one. A plain function runs in a
thread, and gets a context without `await`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import operator
import types
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from waystation.errors import InvalidInputError
from waystation.runtime.decoding import decoder_of
from waystation.transactions.context import BlockingContext, Context
from waystation.transactions.outcomes import SPOKEN, Failure, Outcome, Success, settle
from waystation.transactions.steps import TIMEOUT_SECONDS, guarded, require_type

_encode = msgspec.json.Encoder().encode


class FunctionStep:
    """A step of a user."""

    pure = False

    def __init__(
        self, step_type: str, fn: Callable[..., Any], *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        self.type = require_type(step_type)
        self.timeout_seconds = timeout_seconds
        self.in_thread = not _is_async(fn)
        self.description = (inspect.getdoc(fn) or "").partition("\n")[0]
        self.fn = fn
        self._takes_input = _takes_input(step_type, fn)
        self._reader: msgspec.json.Decoder[Any] | None = None
        self._checker: msgspec.json.Decoder[Any] | None = None

    def resolve(self) -> None:
        """Reads the annotations; late, since they may name what stands further down."""
        hints = _hints(self.type, self.fn)
        second = list(inspect.signature(self.fn).parameters)[1:2]
        try:
            self._reader = decoder_of(hints.get(second[0], Any) if second else Any)
            output = _output_type(hints.get("return", Any))
            self._checker = None if output is Any else decoder_of(output)
        except TypeError as error:
            raise InvalidInputError(
                f"Step {self.type} has a type that JSON cannot be read as: {error}", field="type"
            ) from error

    def check(self, options: Mapping[str, Any]) -> None:
        """A user's step takes any: it finds them in `ctx.options`."""

    async def call(
        self,
        ctx: Context,
        given: bytes,
        options: dict[str, Any],
        *,
        threads: Executor | None = None,
    ) -> Outcome:
        if self._reader is None:
            self.resolve()
        assert self._reader is not None
        try:
            read = self._reader.decode(given) if self._takes_input else None
        except msgspec.MsgspecError as error:
            return _refused_input(self.type, error)
        ctx.call.input, ctx.call.options = read, options
        return await guarded(self.type, ctx, self._settled(ctx, given, read, threads))

    async def _settled(
        self, ctx: Context, given: bytes, read: object, threads: Executor | None
    ) -> Outcome:
        arguments = (read,) if self._takes_input else ()
        if self.in_thread:
            loop = asyncio.get_running_loop()
            blocking = BlockingContext(ctx.call, loop)
            returned = await loop.run_in_executor(threads, self.fn, blocking, *arguments)
        else:
            returned = await self.fn(ctx, *arguments)
        _require_one_outcome(returned)
        outcome = settle(returned, given, retries=ctx.retries)
        if isinstance(outcome, Success) and returned is not None and self._checker is not None:
            self._checker.decode(outcome.output)
        return outcome


def _require_one_outcome(returned: object) -> None:
    if returned is None or isinstance(returned, dict | msgspec.Struct):
        return  # Nearly always; what follows takes time.
    if inspect.isawaitable(returned):
        if inspect.iscoroutine(returned):
            returned.close()
        raise InvalidInputError("A step returned a coroutine.", hint="Is an `await` missing?")
    if isinstance(returned, type):
        raise InvalidInputError(f"A step returned the class {returned.__name__}, not one of it.")
    if isinstance(returned, list | tuple | set) and any(isinstance(x, SPOKEN) for x in returned):
        raise InvalidInputError(
            "A step returned several outcomes, and has exactly one.",
            hint="Children that run beside each other are `Parallel([...])`.",
        )


def _refused_input(step_type: str, error: msgspec.MsgspecError) -> Failure:
    """The step was not called. Whoever gave the input is told: it may be the client."""
    text = f"The input of step {step_type} does not fit: {error}."
    return Failure("failed", _encode({"error": text}), text)


# -- Reading a function ----------------------------------------------------------------------


def _is_async(fn: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
        getattr(fn, "__call__", None)  # noqa: B004 - an object with an async __call__
    )


def _takes_input(step_type: str, fn: Callable[..., Any]) -> bool:
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise InvalidInputError(f"Step {step_type} is a generator; a step has one outcome.")
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = list(inspect.signature(fn).parameters.values())
    taken = [each for each in parameters if each.kind in positional]
    needed = [each for each in parameters if each.default is inspect.Parameter.empty]
    if not 1 <= len(taken) <= 2 or any(each not in taken for each in needed):
        raise InvalidInputError(
            f"Step {step_type} is called with (ctx) or (ctx, input), which its function is not for."
        )
    return len(taken) == 2


def _hints(step_type: str, fn: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(
            fn if inspect.isroutine(fn) else type(fn).__call__, include_extras=True
        )
    except Exception as error:
        # An annotation can be any code: a name that is not there, an attribute, no Python at all.
        raise InvalidInputError(
            f"The annotations of step {step_type} cannot be read: {error}.",
            hint="Types of steps are defined at the top of a module.",
        ) from error


def _output_type(hint: Any) -> Any:
    """The return type without the outcomes; Any where nothing is left to check."""
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    outputs = tuple(each for each in parts if each not in (*SPOKEN, type(None)))
    return functools.reduce(operator.or_, outputs) if outputs and Any not in outputs else Any
