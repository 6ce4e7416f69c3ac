"""Logs: ordered, partitioned, kept until no reader needs them; one protocol for every backend."""
