"""Identity of a lake: whether two processes, or one process at two times, mean the same lake.

The role reads it about once a second, so it needs no library and one small file per table.
"""

from __future__ import annotations

import json
from pathlib import Path

from waystation.config import public_place
from waystation.errors import HistoryError

#: Tables that ingest writes.
TABLES = (
    *("channels", "deliveries", "messages", "operations", "pools", "transactions"),
    "webhook_attempts",
)
#: Commit that creates a table. Delta may delete it after 30 days.
_FIRST_COMMIT = "00000000000000000000.json"


def read_lake_id(place: str) -> str:
    """Return an id that changes when a table of a lake is created, removed or replaced.

    For a folder, it has the ids of the tables, so that the same lake has the same id below another
    path; it is empty without tables. For a URL, it is the URL without its password, because
    a request to an object store each second would cost too much.

    Raise HistoryError if the folder cannot be read, so that no caller takes its lake for a missing
    one.
    """
    if "://" in place:
        return public_place(place).rstrip("/")
    try:
        tables = [(name, _table_id(Path(place) / name / "_delta_log")) for name in TABLES]
    except OSError as error:
        raise HistoryError(
            f"The lake cannot be read: {error}.",
            hint="Give the user of this process read access to its folder.",
        ) from error
    return " ".join(f"{name}={found}" for name, found in tables if found)


def _table_id(log: Path) -> str:
    """Return the id of a table; the number of its folder if the first commit was deleted."""
    try:
        for line in (log / _FIRST_COMMIT).read_bytes().splitlines():
            if found := json.loads(line).get("metaData", {}).get("id"):
                return str(found)
    except FileNotFoundError:
        pass
    except (ValueError, AttributeError):
        return ""  # The table is being created.
    try:
        return str(log.stat().st_ino)
    except FileNotFoundError:
        return ""
