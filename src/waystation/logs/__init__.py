"""Logs: ordered, partitioned sequences of messages with retention.

`protocol.py` defines them for all backends; `streams.py` stores them as streams.
"""
