"""The error that trouble with the archive's database is."""

from __future__ import annotations

from waystation.database import Trouble
from waystation.errors import (
    ArchiveError,
    ArchiveFullError,
    ArchiveRefusedError,
    ArchiveUnavailableError,
)


def fail(trouble: Trouble, text: str) -> ArchiveError:
    """All of it may pass, except for a schema that this release does not know."""
    if trouble is Trouble.NEWER:
        return ArchiveRefusedError(text, hint="Use the release that wrote it, or a newer one.")
    if trouble is Trouble.FULL:
        return ArchiveFullError(text, hint="Make room on its disk; nothing is lost meanwhile.")
    return ArchiveUnavailableError(text)
