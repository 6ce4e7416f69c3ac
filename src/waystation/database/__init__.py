"""SQL databases: what the catalogue and the archive share. PostgreSQL is an extra, see `places`."""

from __future__ import annotations

from waystation.database.migrations import Migrations, read_migrations
from waystation.database.places import check_postgres
from waystation.database.sqlite import SqliteFile
from waystation.database.trouble import Fail, Trouble

__all__ = ["Fail", "Migrations", "SqliteFile", "Trouble", "check_postgres", "read_migrations"]
