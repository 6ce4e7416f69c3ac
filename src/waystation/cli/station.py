"""The client that a command uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from waystation.errors import ForbiddenError

if TYPE_CHECKING:
    from waystation.client import Waystation


@contextmanager
def open_station(url: str, key: str, *, scope: str = "write") -> Iterator[Waystation]:
    """Open a client for the length of the block.

    `scope` is the scope that the command needs; the hint for a key that lacks it names it.
    """
    from waystation.client import Waystation  # noqa: PLC0415 (help must not wait for HTTP libraries)

    with Waystation(url, key=key) as station:
        try:
            yield station
        except ForbiddenError as error:
            error.hint = error.hint or (
                f"Use a key of scope {scope}: `waystation keys create --scope {scope}`."
            )
            raise
