"""The archive in Spark: imported by Spark itself, which takes one data source of each package.

spark.read.format("waystation.archive").option("archive", "/data/archive.db").load()
"""

from __future__ import annotations

from waystation.history.sources.archive import ArchiveSource

__all__ = ["DefaultSource"]

#: The name under which Spark looks for it.
DefaultSource = ArchiveSource
