"""The catalogue: the database behind projects, keys and definitions."""

from __future__ import annotations

from waystation.catalogue.opening import catalogue_at
from waystation.catalogue.protocol import (
    Catalogue,
    DefinitionRecord,
    KeyRecord,
    ProjectRecord,
)
from waystation.catalogue.sqlite import SqliteCatalogue

__all__ = [
    "Catalogue",
    "DefinitionRecord",
    "KeyRecord",
    "ProjectRecord",
    "SqliteCatalogue",
    "catalogue_at",
]
