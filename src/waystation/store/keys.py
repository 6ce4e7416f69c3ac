"""Store keys that belong to no part. `docs/reference/keys.md` lists the keys of all parts."""

from __future__ import annotations

DEFAULT_PROJECT = "default"

#: Hash: stamp of the data set.
FORMAT = "waystation.format"
#: Lease of the node that migrates the data set, in the slot of the stamp.
MIGRATION = "{waystation.format}.migration"
#: Lease of the node that runs maintenance. The name is older than the word.
MAINTENANCE_LEASE = "{waystation.upkeep}:lease"
#: Sorted set: process → time of its last beat in ms.
PROCESSES = "waystation.processes"
#: Hash: secrets of the installation, such as the key of callback tokens.
SECRETS = "waystation.{secrets}"
#: Hash: `shift_ms` and `generation` of the time machine. Test mode only.
TIME = "waystation.time"
#: Hash: process → `generation:seen_ms`. Test mode only.
TIME_FOLLOWERS = "waystation.time.followers"


def data_set_marker(number: int) -> str:
    """Return the key of a data-set marker. Only clusters have markers."""
    return f"waystation.dataset.{{{number}}}"
