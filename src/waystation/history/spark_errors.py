"""Errors of Spark: translate its exceptions into errors of history, without stack traces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException, PythonException

from waystation.errors import LakeDamagedError, SparkGoneError, TaskFailedError

#: Exceptions of PySpark if the Java process has ended. A failing call raises the first one, too.
_GONE = (Py4JError, ConnectionRefusedError, ConnectionResetError)
SPARK_ERRORS = (PySparkException, *_GONE)
#: Condition of Spark for a file that is missing, truncated or damaged, with the path.
_UNREADABLE = re.compile(r"FAILED_READ_FILE.* while reading file (?:file:/+)?(.+?\.parquet)")


@contextmanager
def spark_errors() -> Iterator[None]:
    """Translate the exceptions of Spark for the length of the block.

    Raise LakeDamagedError if Spark cannot read a file, SparkGoneError if its Java process has
    ended, and TaskFailedError for every other failure.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        if file := _unreadable_file(error):
            raise LakeDamagedError(
                f"Spark cannot read the file {file}.",
                hint="If it belongs to the lake, restore it from a copy of the lake.",
            ) from error
        raise TaskFailedError(
            f"Spark failed: {spark_message(error)}",
            hint="No rows were committed. Run the command again.",
        ) from error
    except _GONE as error:
        raise spark_gone() from error


def spark_gone() -> SparkGoneError:
    """Return the error of a Java process that has ended."""
    return SparkGoneError(
        "The process of Spark has ended.",
        hint="No rows were committed. Run the command again; if memory was short, raise --memory.",
    )


def _unreadable_file(error: BaseException) -> str:
    """Return the path of the file that Spark could not read; empty for another error."""
    cause: BaseException | None = error
    while cause is not None:
        if found := _UNREADABLE.search(str(cause)):
            return f"/{found[1]}" if "file:" in found[0] else found[1]
        # PySpark stores the cause of an exception of Java in its own attribute.
        cause = getattr(cause, "_cause", None)
    return ""


def spark_message(error: Exception) -> str:
    """Return the line of an exception that names the error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if isinstance(error, PythonException):
        return lines[-1]  # The exception of a task is below its traceback.
    if isinstance(error, Py4JJavaError) and len(lines) > 1:
        return lines[1].lstrip(": ")  # The first line names the method that was called.
    return lines[0]
