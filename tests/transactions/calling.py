"""Calls of steps without a store: for what a step does by itself."""

from __future__ import annotations

from typing import Any

from waystation.transactions.app import App
from waystation.transactions.context import Context
from waystation.transactions.held import Held, Verdict
from waystation.transactions.outcomes import Outcome
from waystation.transactions.step_call import StepCall, TransactionFacts

ID = "tx-0000" + "0" * 36


class NoRecords:
    """For steps that write nothing while they run."""

    async def once(self, held: Held, place: str, name: str, result: bytes) -> Verdict:
        raise AssertionError(f"once {name} was recorded")

    async def open_callback(self, held: Held, place: str) -> Verdict:
        raise AssertionError("a callback was opened")

    async def report(self, held: Held, progress: bytes) -> Verdict:
        raise AssertionError("progress was reported")


def step_call(**more: Any) -> StepCall:
    """A call of the first step of a transaction that is held."""
    known: dict[str, Any] = {
        "transaction": TransactionFacts(id=ID, type="refund"),
        "held": Held(ID, 1, 0),
        "place": "1",
        "records": NoRecords(),
        "now_ms": lambda: 17,
    }
    return StepCall(**{**known, **more})


async def call(
    app: App,
    step_type: str,
    given: bytes = b"null",
    options: dict[str, Any] | None = None,
    *,
    in_call: StepCall | None = None,
) -> Outcome:
    """What comes of a step of an app, or of a built-in one."""
    step = app.book().find(step_type)
    assert step is not None
    return await step.call(Context(in_call or step_call()), given, options or {})
