"""The embedded store: a Valkey server in the data directory and the process that supervises it."""
