"""The kit of every part: clock, ids, durations, services, batchers, retries, logging, metrics."""
