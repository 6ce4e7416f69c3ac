"""Where a database is: a URL of PostgreSQL, which needs an extra, or nothing, which is a file."""

from __future__ import annotations

from importlib import import_module

from waystation.errors import SettingsError

_SCHEMES = ("postgresql://", "postgres://")


def check_postgres(setting: str, url: str) -> None:
    """Whether this process can use the URL; SettingsError, which never repeats it."""
    if not url.startswith(_SCHEMES):
        raise SettingsError(
            f"Setting {setting} is no URL of PostgreSQL.",
            hint="Write postgresql://user:password@host/database, or leave it empty for a file.",
        )
    try:
        import_module("psycopg")
    except ImportError as error:
        raise SettingsError(
            f"Setting {setting} names PostgreSQL, whose driver psycopg is not installed.",
            hint="pip install 'waystation[postgres]'",
        ) from error
