"""Program that reads a topic on a cluster, as a table and as a stream: `MASTER TOPIC FOLDER`.

The URL of the store is in its environment and in that of the workers. It prints one line of JSON:
the number of rows, the places where tasks ran, and everything that Spark shows about the job.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path

from pyspark.sql import SparkSession

from tests.helpers.spark_cluster import page_of
from tests.history.quick_spark import QUICK_JVM
from waystation.history.session import SessionPlan, open_session


def read(spark: SparkSession, topic: str, folder: Path) -> dict[str, object]:
    rows = spark.read.format("waystation").option("topic", topic).load()
    query = (
        spark.readStream.format("waystation")
        .option("topic", topic)
        .load()
        .select("position")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .option("path", str(folder / "stream"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    execution = rows._jdf.queryExecution()
    context = spark.sparkContext
    about = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}"
    with urllib.request.urlopen(f"{context.uiWebUrl}/environment/", timeout=30) as reply:
        page = reply.read().decode()
    return {
        "rows": rows.count(),
        "streamed": spark.read.parquet(str(folder / "stream")).count(),
        "executors": page_of(f"{about}/executors"),
        "shown": [execution.toString(), page, json.dumps(page_of(f"{about}/environment"))],
    }


def main() -> None:
    master, topic, folder = sys.argv[1:]
    plan = SessionPlan(
        folder=Path(folder),
        master=master,
        memory="512m",
        spark={
            "spark.driver.extraJavaOptions": QUICK_JVM,
            "spark.executor.extraJavaOptions": QUICK_JVM,
            "spark.cores.max": "2",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.sql.shuffle.partitions": "4",
        },
    )
    spark = open_session(plan)
    try:
        sys.stdout.write(json.dumps(read(spark, topic, Path(folder))) + "\n")
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
