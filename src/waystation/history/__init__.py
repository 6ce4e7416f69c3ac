"""History: what has passed through the system, as a lake that Spark reads, checks and analyses.

    from waystation.history import attach

Importing this makes Spark's workers run the Python that runs us, unless PYSPARK_PYTHON says
otherwise: they would take `python3` from PATH, which may lack all of this. And where the machine
has no Java, a session that you open finds the one that pip brought.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from waystation.errors import HistoryMissingError

if TYPE_CHECKING:
    from waystation.history.lake.views import attach

__all__ = ["attach"]

_NEEDED = ("pyspark", "pyarrow", "deltalake")

if missing := [name for name in _NEEDED if find_spec(name) is None]:
    raise HistoryMissingError(
        f"History needs {' and '.join(missing)}.", hint="pip install 'waystation[history]'"
    )

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def __getattr__(name: str) -> Any:
    # Late: tasks of Spark import this package, and need no more than their own part of it.
    if name == "attach":
        from importlib import import_module  # noqa: PLC0415

        import_module(f"{__name__}.java").provide_java(os.environ)
        return import_module(f"{__name__}.lake.views").attach
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
