"""Topics: ordered logs that grow without moving a group to another shard."""

from __future__ import annotations

from waystation.topics.browser import Browser
from waystation.topics.deduplication import Deduplication
from waystation.topics.producer import Producer, Receipt
from waystation.topics.topics import Topics
from waystation.topics.upkeep import Upkeep

__all__ = ["Browser", "Deduplication", "Producer", "Receipt", "Topics", "Upkeep"]
