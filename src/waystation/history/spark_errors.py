"""What goes wrong in Spark, in our own words: a sentence in the place of pages of traces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException, PythonException

from waystation.errors import SparkGoneError, TaskFailedError

#: What PySpark raises when Spark is not there any more, and when it fails, too.
_GONE = (Py4JError, ConnectionRefusedError, ConnectionResetError)
SPARK_ERRORS = (PySparkException, *_GONE)


@contextmanager
def spark_errors() -> Iterator[None]:
    """For work with Spark: TaskFailedError if that fails, SparkGoneError if its process ends."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
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
