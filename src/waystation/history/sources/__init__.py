"""Data sources of Spark: topics and record logs as `waystation`, the archive of transactions as
`waystation.archive`."""
