"""History: what has passed through the system, as a lake that Spark reads, checks and analyses.

    from waystation.history import attach

Importing this makes Spark's workers run the Python that runs us, unless PYSPARK_PYTHON says
otherwise: they would take `python3` from PATH, which may lack all of this. And where the machine
has no Java, a session that you open finds the one that pip brought.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from waystation.history.lake.views import attach

__all__ = ["attach"]

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def __getattr__(name: str) -> Any:
    # Import on use, because tasks of Spark and nodes import this package without `attach`.
    if name == "attach":
        from importlib import import_module  # noqa: PLC0415

        import_module(f"{__name__}.packages").require_packages()
        import_module(f"{__name__}.java").provide_java(os.environ)
        return import_module(f"{__name__}.lake.views").attach
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
