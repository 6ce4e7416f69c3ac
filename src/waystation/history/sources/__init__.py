"""Data sources of Spark: `waystation` for topics and record logs, `waystation.archive` for archived
transactions."""
