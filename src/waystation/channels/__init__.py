"""Channels: HTTP pub/sub whose messages stay until they expire."""
