"""Spark discovers the data source `waystation` by the name of this package.

    spark.read.format("waystation").option("topic", "orders").load()

If Spark does not find the package, as with `--py-files`, call `pyspark_waystation.register(spark)`.
The call also enables filter push-down, which needs Spark 4.1; `waystation.history.attach` makes it
for you.
"""

from __future__ import annotations

from waystation.history.sources.topics import TopicSource, register

__all__ = ["DefaultSource", "register"]

#: Name that Spark looks for.
DefaultSource = TopicSource
