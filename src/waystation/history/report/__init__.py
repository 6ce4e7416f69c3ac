"""The report: figures of a lake as one HTML page."""
