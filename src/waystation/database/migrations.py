"""Migrations: numbered SQL files of a package, each applied once, in order."""

from __future__ import annotations

import re
from importlib import resources

#: (version, SQL), oldest first.
Migrations = list[tuple[int, str]]

_NAME = re.compile(r"(\d{4})_[a-z_]+\.sql")


def read_migrations(package: str, *folder: str) -> Migrations:
    """All files of a folder that are named as `0001_what.sql`."""
    found = []
    for file in resources.files(package).joinpath("migrations", *folder).iterdir():
        if match := _NAME.fullmatch(file.name):
            found.append((int(match.group(1)), file.read_text(encoding="utf-8")))
    return sorted(found)
