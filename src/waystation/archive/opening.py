"""Which archive it is: the one of a PostgreSQL URL, or a file of the data directory."""

from __future__ import annotations

from pathlib import Path

from waystation.archive.protocol import Archive
from waystation.archive.sqlite import SqliteArchive
from waystation.database import check_postgres


def archive_place(url: str, *, folder: Path) -> str:
    """Return the URL of the archive, or the path of its file in the data directory."""
    return url or str(folder / "archive.db")


def archive_at(url: str, *, folder: Path) -> Archive:
    """The archive, not opened yet; SettingsError for a URL that cannot be used."""
    if not url:
        return SqliteArchive(folder / "archive.db")
    check_postgres("archive", url)
    from waystation.archive.postgres import PostgresArchive  # noqa: PLC0415 (an extra)

    return PostgresArchive(url)
