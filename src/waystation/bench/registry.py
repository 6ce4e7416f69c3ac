"""The benchmarks that there are, by name."""

from __future__ import annotations

from waystation.bench.archive import ARCHIVE
from waystation.bench.benchmark import Benchmark
from waystation.bench.channels import CHANNELS
from waystation.bench.delivery import DELIVERY
from waystation.bench.history import HISTORY
from waystation.bench.pools import POOLS
from waystation.bench.sender import SENDER
from waystation.bench.topics import TOPICS
from waystation.bench.transactions import TRANSACTIONS

_ALL = (ARCHIVE, CHANNELS, DELIVERY, HISTORY, POOLS, SENDER, TOPICS, TRANSACTIONS)
BENCHMARKS: dict[str, Benchmark] = {benchmark.name: benchmark for benchmark in _ALL}
