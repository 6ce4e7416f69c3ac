"""Commands that run for long outlive a station that restarts: they wait, and say so."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from rich.text import Text

from waystation import errors
from waystation.cli.output import problems

_T = TypeVar("_T")

_PAUSE_SECONDS = 1.0
_AWAY = (
    errors.BusyError,
    errors.CatalogueError,
    errors.StationUnreachableError,
    errors.StoreError,
)


def patiently(verb: Callable[[], _T]) -> _T:
    """Does it, however long the station is away."""
    waited = False
    while True:
        try:
            result = verb()
        except _AWAY as error:
            if not waited:
                note(f"{error.message.rstrip('.')}; waiting for it, Ctrl-C ends")
            waited = True
            time.sleep(_PAUSE_SECONDS)
        else:
            if waited:
                note("the station is back")
            return result


def note(text: str) -> None:
    """Tells something beside what is printed."""
    problems.print(Text(text, style="yellow"))
