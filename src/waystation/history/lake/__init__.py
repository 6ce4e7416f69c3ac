"""The lake: Delta tables with their schemas, files and maintenance; views and rollups for Spark."""
