"""Effects of importing history on the process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_ASK = "import waystation.history, os; print(os.environ['PYSPARK_PYTHON'])"


@pytest.mark.parametrize("chosen", ["", "/opt/python"], ids=["unset", "set"])
def test_workers_of_spark_run_the_python_that_runs_us_unless_another_was_chosen(
    chosen: str,
) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "PYSPARK_PYTHON"}
    if chosen:
        environment["PYSPARK_PYTHON"] = chosen
    told = subprocess.run(
        [sys.executable, "-c", _ASK], env=environment, capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == (chosen or sys.executable)
