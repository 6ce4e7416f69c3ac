"""Count orders per customer and minute on a live topic, and write each minute once.

`time` is the time at which the store committed a message, so messages of a partition come in order
of time. A watermark of ten seconds closes a minute ten seconds after its end. Spark then writes the
row of that minute and drops its state.
"""

from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

OUT = Path("orders-per-minute").resolve()

spark = SparkSession.builder.getOrCreate()

query = (
    spark.readStream.format("waystation")
    .option("topic", "orders")
    .load()
    .withWatermark("time", "10 seconds")
    .groupBy(F.window("time", "1 minute"), F.col("group").alias("customer"))
    .agg(F.count("*").alias("orders"))
    .select("window.start", "customer", "orders")
    .writeStream.format("json")
    .outputMode("append")
    .option("checkpointLocation", f"{OUT}-checkpoint")
    # Read what the topic has now, then end. `processingTime="10 seconds"` would run until stopped.
    .trigger(availableNow=True)
    .start(str(OUT))
)
query.awaitTermination()

# The last minute stays open until a later message moves the watermark behind its end.
closed = "start timestamp, customer string, orders long"
spark.read.schema(closed).json(str(OUT)).orderBy("start", "customer").show()
