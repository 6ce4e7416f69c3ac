"""What goes wrong in Spark, in our own words: a sentence in the place of pages of traces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException, PythonException

from waystation.errors import LakeDamagedError, SparkGoneError, TaskFailedError

#: What PySpark raises when Spark is not there any more, and when it fails, too.
_GONE = (Py4JError, ConnectionRefusedError, ConnectionResetError)
SPARK_ERRORS = (PySparkException, *_GONE)
#: Condition of Spark for a file that is missing, truncated or damaged, with the path.
_UNREADABLE = re.compile(r"FAILED_READ_FILE.* while reading file (?:file:/+)?(.+?\.parquet)")


@contextmanager
def spark_errors() -> Iterator[None]:
    """For work with Spark: TaskFailedError if that fails, SparkGoneError if its process ends.

    LakeDamagedError if Spark cannot read a file.
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
            f"Spark could not do it: {spark_words(error)}",
            hint="Nothing was committed, and it can be done again.",
        ) from error
    except _GONE as error:
        raise spark_gone() from error


def spark_gone() -> SparkGoneError:
    """Return the error of a Java process that has ended."""
    return SparkGoneError(
        "The process of Spark has ended.",
        hint="Nothing is lost: start it again. If memory was short, give it more (--memory).",
    )


def _unreadable_file(error: BaseException) -> str:
    """Return the path of the file that Spark could not read; empty for another error."""
    cause: BaseException | None = error
    while cause is not None:
        if found := _UNREADABLE.search(str(cause)):
            return f"/{found[1]}" if "file:" in found[0] else found[1]
        # PySpark keeps the cause that Java has told.
        cause = getattr(cause, "_cause", None)
    return ""


def spark_words(error: Exception) -> str:
    """The line of an error that says what it was."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if isinstance(error, PythonException):
        return lines[-1]  # What a task raised stands below its trace.
    if isinstance(error, Py4JJavaError) and len(lines) > 1:
        return lines[1].lstrip(": ")  # Below the name of what was called.
    return lines[0]
