"""Building blocks of all parts, such as clock, services, batchers, retries and metrics."""
