"""What the process tells about itself: log lines and metrics. Never payloads, never secrets."""
