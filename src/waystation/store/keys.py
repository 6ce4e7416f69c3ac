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


def key_beside(name: str, what: str) -> str:
    """Return the name of a key in the slot of key `name`, for data that belongs to it.

    A name with a hash tag is extended and keeps its tag. Any other name becomes the tag itself.
    Raise ValueError if that is impossible, because a closing brace would end the tag early.
    """
    if _tag_of(name):
        return f"{name}.{what}"
    if "}" in name:
        raise ValueError(f"The name {name!r} has a closing brace without a hash tag.")
    return f"{{{name}}}.{what}"


def _tag_of(name: str) -> str:
    _, brace, rest = name.partition("{")
    tag, end, _ = rest.partition("}")
    return tag if brace and end else ""
