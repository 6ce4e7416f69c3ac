"""Counts what one store client is asked to do, whatever others of this process do meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from waystation.store.client import Store


def count_calls(store: Store) -> Callable[[], int]:
    """Begins to count; the function returned tells how many calls there were."""
    count = 0
    submit = store._submit

    def counting(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        return submit(*arguments, **options)

    store._submit = counting  # type: ignore[method-assign]
    return lambda: count
