"""Packages and programs that history needs beyond those of a server."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from waystation.errors import HistoryMissingError
from waystation.history.java import find_java

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


def require_spark(master: str, environment: Mapping[str, str], folder: Path) -> None:
    """Raise HistoryMissingError or NoJavaError if Spark cannot run with this master.

    Spark Connect needs no Java on this machine. `folder` is that of Spark in the data directory.
    """
    require_packages()
    if not master.startswith("sc://"):
        find_java(environment, folder / "java")
