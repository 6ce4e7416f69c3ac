"""Topics: ordered, partitioned streams of messages that grow without losing their order."""
