"""What clients take from the environment when they are not told."""

from __future__ import annotations

import os
from pathlib import Path

from waystation.errors import SettingsError

DEFAULT_URL = "http://127.0.0.1:7070"


def station_url(url: str) -> str:
    """The address that was told, else WAYSTATION_URL, else that of a local `waystation dev`."""
    url = url or os.environ.get("WAYSTATION_URL") or DEFAULT_URL
    scheme, _, host = url.partition("://")
    if scheme.lower() not in ("http", "https") or not host.strip("/"):
        raise SettingsError(
            f"{url!r} is no address of a station.", hint=f"Write it like {DEFAULT_URL}."
        )
    return url


def key_from_environment() -> str:
    """The content of the file WAYSTATION_KEY_FILE, else WAYSTATION_KEY, else no key."""
    if file := os.environ.get("WAYSTATION_KEY_FILE", ""):
        try:
            return Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"WAYSTATION_KEY_FILE cannot be read: {error}.") from error
    return os.environ.get("WAYSTATION_KEY", "")
