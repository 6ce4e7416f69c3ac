"""Which catalogue it is: the one of a PostgreSQL URL, or a file of the data directory."""

from __future__ import annotations

from pathlib import Path

from waystation.catalogue.protocol import Catalogue
from waystation.catalogue.sqlite import SqliteCatalogue
from waystation.database import check_postgres


def catalogue_at(url: str, *, folder: Path) -> Catalogue:
    """The catalogue, not opened yet; SettingsError for a URL that cannot be used."""
    if not url:
        return SqliteCatalogue(folder / "catalogue.db")
    check_postgres("catalogue", url)
    from waystation.catalogue.postgres import PostgresCatalogue  # noqa: PLC0415 (an extra)

    return PostgresCatalogue(url)
