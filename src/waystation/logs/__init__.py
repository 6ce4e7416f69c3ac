"""Ordered, partitioned logs with retention, behind one protocol for all backends."""
