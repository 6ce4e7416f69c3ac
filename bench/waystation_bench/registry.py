"""The benchmarks that there are, by name."""

from __future__ import annotations

from waystation_bench.archive import ARCHIVE
from waystation_bench.benchmark import Benchmark
from waystation_bench.channels import CHANNELS
from waystation_bench.delivery import DELIVERY
from waystation_bench.history import HISTORY
from waystation_bench.pools import POOLS
from waystation_bench.sender import SENDER
from waystation_bench.topics import TOPICS
from waystation_bench.transactions import TRANSACTIONS

_ALL = (ARCHIVE, CHANNELS, DELIVERY, HISTORY, POOLS, SENDER, TOPICS, TRANSACTIONS)
BENCHMARKS: dict[str, Benchmark] = {benchmark.name: benchmark for benchmark in _ALL}
