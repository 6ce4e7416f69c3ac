"""The error that trouble with the catalogue's database is."""

from __future__ import annotations

from waystation.database import Trouble
from waystation.errors import CatalogueError


def fail(trouble: Trouble, text: str) -> CatalogueError:
    """Whatever it is, the catalogue cannot be used for now."""
    newer = trouble is Trouble.NEWER
    return CatalogueError(text, hint="Use the release that wrote it, or a newer one." * newer)
