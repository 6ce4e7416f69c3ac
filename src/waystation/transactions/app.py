"""An app: the steps and pipelines of a user.

    app = App()

    @app.step("refund/pay")
    async def pay(ctx, refund: Refund):
        return await ctx.once("pay", lambda: bank.refund(refund, key=ctx.idempotency_key))

    app.pipeline("refund", ["refund/approve", "refund/pay"])

It only gathers: `waystation dev --app module:app` and `serve --app` run it. What is wrong with it
is told where it is written, or at the latest when it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from waystation.errors import InvalidInputError, PipelineInvalidError
from waystation.runtime.durations import Duration, duration_ms
from waystation.transactions.builtins import BUILT_IN
from waystation.transactions.function_step import FunctionStep
from waystation.transactions.pipeline import (
    DEFAULT_GROUP,
    Pipeline,
    StepLike,
    define,
    read_pipelines,
)
from waystation.transactions.steps import TIMEOUT_SECONDS, StepBook
from waystation.types.common import Record

_Function = TypeVar("_Function", bound=Callable[..., Any])


class App:
    """Steps by type and pipelines by name."""

    def __init__(self) -> None:
        self._steps: dict[str, FunctionStep] = {}
        self._pipelines: dict[str, Pipeline] = {}
        #: Files that pipelines were read from.
        self.files: list[Path] = []

    def __repr__(self) -> str:
        return f"<App [{len(self._steps)} steps, {len(self._pipelines)} pipelines]>"

    def step(
        self, step_type: str, *, timeout: Duration = TIMEOUT_SECONDS
    ) -> Callable[[_Function], _Function]:
        """Makes a function the step of a type; the function itself stays as it is."""
        timeout_seconds = duration_ms(timeout, field="timeout") / 1000
        if not timeout_seconds:
            raise InvalidInputError("A step needs some time.", field="timeout")
        if not isinstance(step_type, str):
            raise InvalidInputError("Write @app.step with a type: @app.step('refund/pay').")

        def added(fn: _Function) -> _Function:
            if step_type in BUILT_IN:
                raise InvalidInputError(f"Step {step_type} is built in.", field="type")
            if step_type in self._steps:
                raise InvalidInputError(f"There are two steps {step_type}.", field="type")
            self._steps[step_type] = FunctionStep(step_type, fn, timeout_seconds=timeout_seconds)
            return fn

        return added

    def pipeline(
        self,
        name: str,
        steps: Sequence[StepLike],
        *,
        group: str = DEFAULT_GROUP,
        description: str = "",
        startable: bool = True,
        snapshot: bool = False,
        on_failure: str = "",
        record: Record = "full",
        redact: Sequence[str] = (),
    ) -> Pipeline:
        """Defines a pipeline; `on_failure` names the one that undoes what it did, if it fails.

        `record` and `redact` say what history keeps of its transactions.
        """
        pipeline = define(
            name,
            steps,
            group=group,
            description=description,
            startable=startable,
            snapshot=snapshot,
            on_failure=on_failure,
            record=record,
            redact=redact,
        )
        self._add([pipeline])
        return pipeline

    def pipelines_of(self, file: str | Path) -> list[Pipeline]:
        """Defines the pipelines that a JSON file has."""
        found = read_pipelines(file)
        self._add(found)
        self.files.append(Path(file).resolve())
        return found

    @property
    def pipelines(self) -> tuple[Pipeline, ...]:
        """All definitions, in the order in which they were made."""
        return tuple(self._pipelines.values())

    def book(self) -> StepBook:
        """All steps, the built-in ones too, with their types read."""
        for step in self._steps.values():
            step.resolve()
        return StepBook((*self._steps.values(), *BUILT_IN.values()))

    def _add(self, pipelines: Sequence[Pipeline]) -> None:
        names = [*self._pipelines, *(each.name for each in pipelines)]
        for name in names:
            if names.count(name) > 1:
                raise PipelineInvalidError(f"There are two pipelines {name}.", field="name")
        self._pipelines.update((each.name, each) for each in pipelines)
