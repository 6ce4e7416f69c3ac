"""Channels: HTTP pub/sub whose messages stay until they expire."""

from __future__ import annotations

from waystation.channels.channels import Channels
from waystation.channels.message import Fetched, Message, Published

__all__ = ["Channels", "Fetched", "Message", "Published"]
