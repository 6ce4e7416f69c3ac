"""What clients take from the environment when they are not told."""

from __future__ import annotations

import os
from pathlib import Path

from waystation.errors import SettingsError

DEFAULT_URL = "http://127.0.0.1:7070"


def url_from_environment() -> str:
    """WAYSTATION_URL, else the address of a local `waystation dev`."""
    return os.environ.get("WAYSTATION_URL") or DEFAULT_URL


def key_from_environment() -> str:
    """The content of the file WAYSTATION_KEY_FILE, else WAYSTATION_KEY, else no key."""
    if file := os.environ.get("WAYSTATION_KEY_FILE", ""):
        try:
            return Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"WAYSTATION_KEY_FILE cannot be read: {error}.") from error
    return os.environ.get("WAYSTATION_KEY", "")
