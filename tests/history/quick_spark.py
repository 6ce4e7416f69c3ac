"""Settings that make small jobs of Spark quick, and long ones slow: for tests alone."""

from __future__ import annotations

import json

#: About 40 % less for a small job.
QUICK_SPARK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
    "spark.sql.shuffle.partitions": "1",
}
#: The same for a command, as its environment.
QUICK = {
    "WAYSTATION_HISTORY_SPARK": json.dumps(QUICK_SPARK),
    "WAYSTATION_HISTORY_MEMORY": "1g",
}
