"""Options of the Spark source of the archive: each is known by name, and none is a secret."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec

from waystation.database import check_postgres
from waystation.errors import SettingsError, SourceOptionError
from waystation.history.offsets import TASK_ROWS, TASKS_PER_CORE
from waystation.history.sources.options import read_count

_URL = "WAYSTATION_ARCHIVE_URL"
_URL_FILE = "WAYSTATION_ARCHIVE_URL_FILE"
_SCHEMES = ("postgresql:", "postgres:")


class ArchivePlace(msgspec.Struct, frozen=True):
    """Where the archive is found, on whichever machine asks."""

    option: str = ""
    file: str = ""

    def find(self, environment: Mapping[str, str] | None = None) -> str:
        """A URL, which may have a password in it and is not to be kept; or the path of a file."""
        environment = os.environ if environment is None else environment
        if self.option:
            return self.option
        file = self.file or environment.get(_URL_FILE, "")
        if file:
            try:
                return Path(file).read_text(encoding="utf-8").strip()
            except OSError as error:
                raise SourceOptionError(
                    f"The file with the archive's URL cannot be read: {error.strerror}.",
                    field="archive_file",
                    hint="It has to be on every machine that runs executors.",
                ) from error
        if url := environment.get(_URL, ""):
            return url
        raise SourceOptionError(
            "It is not said where the archive is.",
            field="archive",
            hint="Give archive, the path of archive.db or a URL without a password; or"
            f" archive_file, a file with the URL; or set ${_URL}.",
        )


class ArchiveOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader was told."""

    place: ArchivePlace = ArchivePlace()
    partition_rows: int = TASK_ROWS
    partitions_max: int = 0

    @property
    def tasks_max(self) -> int:
        """Tasks at most; unless it was said, by the cores of the machine that plans."""
        return self.partitions_max or TASKS_PER_CORE * (os.cpu_count() or 1)


_KNOWN = ("archive", "archive_file", "partition_rows", "partitions_max")


def read_archive_options(given: Mapping[str, str]) -> ArchiveOptions:
    """Checked options; SourceOptionError names what is wrong."""
    if unknown := sorted(set(given) - set(_KNOWN)):
        raise SourceOptionError(
            f"There is no option {unknown[0]}.",
            field=unknown[0],
            hint=f"There are {', '.join(_KNOWN)}.",
        )
    return ArchiveOptions(
        place=_place(given.get("archive", ""), given.get("archive_file", "")),
        partition_rows=read_count(given, "partition_rows") or TASK_ROWS,
        partitions_max=read_count(given, "partitions_max") or 0,
    )


def _place(archive: str, file: str) -> ArchivePlace:
    if archive and file:
        raise SourceOptionError(
            "Only one of archive and archive_file can be given.", field="archive"
        )
    if file and not Path(file).is_absolute():
        raise SourceOptionError(
            "archive_file has to be an absolute path: executors run elsewhere.",
            field="archive_file",
        )
    if archive.startswith(_SCHEMES):
        try:
            check_postgres("archive", archive)
        except SettingsError as error:
            raise SourceOptionError(error.message, field="archive", hint=error.hint) from error
        if _has_password(archive):
            raise SourceOptionError(
                "The archive's password must not be in an option, since options are shown.",
                field="archive",
                hint=f"Put the URL into a file and give archive_file, or set ${_URL_FILE}.",
            )
    elif archive and not Path(archive).is_absolute():
        raise SourceOptionError(
            "archive is a URL of PostgreSQL, or the absolute path of a file.", field="archive"
        )
    return ArchivePlace(archive, file)


def _has_password(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.password) or "password" in parse_qs(parts.query)
    except ValueError:
        # Whatever it is, it is not shown.
        return True
