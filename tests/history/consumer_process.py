"""A stream with the option `consumer`, in a process to be killed: `FOLDER [BATCH]`.

It writes the ids of each micro-batch of 20 messages to a file. In the micro-batch with the number
BATCH, it creates the file `begun` and waits for ever.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from pyspark.sql import DataFrame

from tests.history.quick_spark import QUICK_SPARK
from waystation.history.session import SessionPlan, open_session


def main(folder: Path, last: int) -> None:
    plan = SessionPlan(
        folder=folder / "spark", master="local[1]", memory="1g", ui=False, spark=QUICK_SPARK
    )

    def write(batch: DataFrame, number: int) -> None:
        ids = [row.id for row in batch.select("id").collect()]
        if number == last:
            (folder / "begun").touch()
            threading.Event().wait()
        (folder / f"batch-{number}").write_text(" ".join(ids))

    query = (
        open_session(plan)
        .readStream.format("waystation")
        .options(topic="orders", consumer="files", rows_max="20")
        .load()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else -1)
