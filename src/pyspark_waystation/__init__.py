"""Waystation in Spark: imported by Spark itself, which finds data sources by this package's name.

    spark.read.format("waystation").option("topic", "orders").load()

Where Spark does not find it, as with `--py-files`, say `pyspark_waystation.register(spark)`.
"""

from __future__ import annotations

from waystation.history.sources.topics import WaystationSource, register

__all__ = ["DefaultSource", "register"]

#: The name under which Spark looks for it.
DefaultSource = WaystationSource
