"""ACA-Py: what agents with the redis-events plugin need, in the plugin's own names and formats."""
