"""Query the lake: orders and revenue by customer, with SQL and with DataFrames.

The lake has what `waystation dev` or `waystation history ingest` copied from topics, subscriptions
and transactions.
"""

import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from waystation.history import attach

spark = attach(
    SparkSession.builder.getOrCreate(),
    lake=os.environ.get("WAYSTATION_HISTORY_LAKE", ".waystation/lake"),
)

# A payload is binary. A filter on `day` reads only the files of these days.
spark.sql("""
    select group as customer, count(*) as orders,
           sum(get_json_object(cast(payload as string), '$.total')) as revenue
    from waystation.messages
    where topic = 'orders' and day >= current_date() - 7
    group by 1 order by revenue desc
""").show()

# The same tables as DataFrames: how long each order waited from produce to delivery.
messages = spark.table("waystation.messages").where("topic = 'orders'")
delivered = spark.table("waystation.deliveries").where("to_place = '-'")
waited = F.unix_millis(delivered.time) - F.unix_millis(messages.time)
(
    messages.join(delivered, "position")
    .groupBy("subscription")
    .agg(F.count("*").alias("delivered"), F.percentile_approx(waited, 0.5).alias("median_ms"))
    .show()
)
