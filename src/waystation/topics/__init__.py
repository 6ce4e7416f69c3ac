"""Topics: ordered logs that grow without moving a group to another shard."""
