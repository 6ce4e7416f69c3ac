"""Small apps for tests of transactions."""

from __future__ import annotations

from typing import Any

import msgspec

from waystation import App, Context


class Note(msgspec.Struct):
    """What steps of these tests pass on: which of them have run."""

    steps: list[str] = []


def app_with(*, names_: str = "abc") -> App:
    """An app of steps that note their own names."""
    app = App()
    for name in names_:

        def make(name: str) -> Any:
            async def step(ctx: Context, note: Note) -> Note:
                return Note([*note.steps, name])

            return step

        app.step(name)(make(name))
    return app


def one_step(step: Any, **options: Any) -> App:
    """An app with a pipeline `p` of one step."""
    app = App()
    app.step("step", **options)(step)
    app.pipeline("p", ["step"])
    return app
