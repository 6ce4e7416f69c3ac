"""The Java process of Spark, with all that it says going into a file.

Spark and its workers talk to the standard error of whoever started them: about modules of Java, log
levels, tasks that are tried again. A command's own words would drown there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

from waystation.errors import SparkStartError
from waystation.history.spark_errors import spark_words
from waystation.runtime.data_files import make_private, open_private, tighten

#: Below the folder of a session.
LOG_NAME = "spark.log"
#: One that is longer is begun anew with the next session.
_LOG_BYTES_MAX = 10 * 1_048_576


def start_spark(folder: Path, settings: Mapping[str, str]) -> None:
    """Starts Spark in this process, unless it has been; SparkStartError if it does not come up."""
    if SparkContext._gateway is not None:
        return
    conf = SparkConf()
    for name, value in settings.items():
        conf.set(name, value)
    logging.getLogger().addFilter(_is_not_py4j)
    log = folder / LOG_NAME
    make_private(folder)
    tighten([folder, log])
    if log.exists() and log.stat().st_size > _LOG_BYTES_MAX:
        log.unlink()
    with open_private(log, "ab") as heard:
        try:
            said = {"stdout": heard, "stderr": heard}
            gateway = launch_gateway(conf, said)  # type: ignore[no-untyped-call]
            SparkContext(conf=conf, gateway=gateway)
        except Exception as error:
            raise SparkStartError(
                f"Spark does not start: {spark_words(error)}", hint=f"What it said is in {log}."
            ) from error


def _is_not_py4j(record: logging.LogRecord) -> bool:
    """Py4J tells by the root of all loggers, in a page, that Java is gone; we do, in a sentence."""
    return "py4j" not in record.pathname
