"""Audit of the lake: find messages and transactions that were lost, doubled or overtaken."""

from __future__ import annotations

from waystation.history.audit.audit import audit
from waystation.history.audit.findings import Finding, Findings
from waystation.history.audit.live_state import Live

__all__ = ["Finding", "Findings", "Live", "audit"]
