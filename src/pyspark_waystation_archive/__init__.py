"""Spark discovers the data source `waystation.archive` by the name of this package.

    spark.read.format("waystation.archive").option("archive", "/data/archive.db").load()

Spark takes one data source from each package, so `waystation` has a package of its own.
"""

from __future__ import annotations

from waystation.history.sources.archive import ArchiveSource

__all__ = ["DefaultSource"]

#: Name that Spark looks for.
DefaultSource = ArchiveSource
