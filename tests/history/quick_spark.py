"""Spark settings for tests that make small jobs fast and large jobs slow."""

from __future__ import annotations

import json

#: About 40 % less for a small job. With one compiler, the JVM reserves 48 MiB for compiled code;
#: a JVM that runs all tests fills them and then fails with an InternalError.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -Xshare:auto"
QUICK_SPARK = {
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.sql.shuffle.partitions": "1",
}
#: The same for a command, as its environment.
QUICK = {
    "WAYSTATION_HISTORY_SPARK": json.dumps(QUICK_SPARK),
    "WAYSTATION_HISTORY_MEMORY": "1g",
}
