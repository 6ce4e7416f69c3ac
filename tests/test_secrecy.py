"""No payload and no key shows in logs, metrics, readiness or error replies (S-12)."""
