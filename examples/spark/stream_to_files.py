"""Copy a live topic into Parquet files, each message once, also if the job is killed at any line.

Structured Streaming writes the offsets of a micro-batch into the checkpoint before it calls
`write_batch`. After a crash it calls the function again with the same batch id and the same
messages, so the second call overwrites the files of the first. Run it again: it continues.
"""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

OUT = Path("orders-files").resolve()

spark = SparkSession.builder.getOrCreate()


def write_batch(batch: DataFrame, batch_id: int) -> None:
    batch.write.mode("overwrite").parquet(f"{OUT}/batch={batch_id}")


query = (
    spark.readStream.format("waystation")
    .option("topic", "orders")
    .option("rows_max", "50")  # At most 50 messages in a micro-batch.
    .load()
    .selectExpr("id", "group as customer", "time", "cast(payload as string) as payload")
    .writeStream.foreachBatch(write_batch)
    .option("checkpointLocation", f"{OUT}-checkpoint")
    # Read what the topic has now, then end. `processingTime="1 second"` would run until stopped.
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

print("orders in files:", spark.read.parquet(str(OUT)).count())
