"""The register of all metrics of the process."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.process_collector import ProcessCollector

registry = CollectorRegistry()
ProcessCollector(registry=registry)
