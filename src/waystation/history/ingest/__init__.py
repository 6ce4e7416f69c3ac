"""Ingest: copies the logs of a store into the lake, every entry exactly once."""
