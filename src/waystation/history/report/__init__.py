"""The report: one page of what passed through the system, to look at or to mail."""

from __future__ import annotations

from waystation.history.report.writing import Reported, write_report

__all__ = ["Reported", "write_report"]
