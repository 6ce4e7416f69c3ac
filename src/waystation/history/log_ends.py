"""Log positions by which a node sees whether history has work."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Mapping

from waystation.errors import LogNotFoundError, StoreDamagedError
from waystation.history.decoders.partitions import log_kind
from waystation.history.ingest.retention import HARD, SOFT
from waystation.history.log_reader import DamageReports
from waystation.logs import keys
from waystation.logs.streams import StreamLogs
from waystation.store.client import Store

#: Partition, as `<log>/<number>`, → offset.
Offsets = dict[str, int]

#: Partitions that one round trip reads.
_BATCH = 512


async def read_ends(logs: StreamLogs, damage: DamageReports) -> Offsets:
    """Return the end of each partition that has ever had an entry. Leave out damaged ones."""

    async def end(log: str, partition: int) -> int:
        try:
            return (await logs.state(log, partition)).end
        except LogNotFoundError:
            return 0  # A crash left a partition that is not created or not deleted completely.
        except StoreDamagedError as error:
            damage.add(error)
            return 0

    partitions = [
        (log, partition)
        for log, count in (await logs.names()).items()
        if log_kind(log) is not None
        for partition in range(count)
    ]
    ends: list[int] = []
    for first in range(0, len(partitions), _BATCH):
        ends += await asyncio.gather(*(end(*each) for each in partitions[first : first + _BATCH]))
    return {
        f"{log}/{partition}": end
        for (log, partition), end in zip(partitions, ends, strict=True)
        if end
    }


async def read_holds(store: Store, partitions: Iterable[str]) -> Offsets:
    """Return the offset from which history needs each partition, if it holds the partition."""
    wanted = list(partitions)
    found: Offsets = {}
    for first in range(0, len(wanted), _BATCH):
        batch = wanted[first : first + _BATCH]
        replies = await asyncio.gather(
            *(store.call("HMGET", _holds(each), SOFT, HARD, repeatable=True) for each in batch)
        )
        for partition, reply in zip(batch, replies, strict=True):
            if holds := [int(hold.split()[0]) for hold in reply if hold]:
                found[partition] = max(holds)
    return found


def _holds(partition: str) -> str:
    log, _, number = partition.rpartition("/")
    return keys.holds(log, int(number))


def ends_digest(ends: Mapping[str, int]) -> str:
    """Return a digest that is equal for equal ends. Partitions without an entry do not count."""
    lines = sorted(f"{partition} {end}" for partition, end in ends.items() if end)
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()
