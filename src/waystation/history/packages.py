"""Packages that history needs beyond those of a server."""

from __future__ import annotations

from importlib.util import find_spec

from waystation.errors import HistoryMissingError

_NEEDED = ("pyspark", "pyarrow", "deltalake")


def missing_packages() -> list[str]:
    """Return the packages of the extra `history` that are not installed."""
    return [name for name in _NEEDED if find_spec(name) is None]


def require_packages() -> None:
    """Raise HistoryMissingError if a package of the extra `history` is not installed."""
    if missing := missing_packages():
        raise HistoryMissingError(
            f"History needs {' and '.join(missing)}.",
            hint="Install them with: pip install 'waystation[history]'",
        )
