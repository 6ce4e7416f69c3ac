"""SIGTERM and SIGINT under load: what was acknowledged is kept, what waits ends (F-34)."""
