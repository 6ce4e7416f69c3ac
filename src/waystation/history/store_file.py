"""The file that WAYSTATION_STORE_URL_FILE names, if it names the store of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_VARIABLE = "WAYSTATION_STORE_URL_FILE"


def store_url_file(url: str, environment: Mapping[str, str]) -> str:
    """Return the absolute path of the file that contains the URL of the store; empty without one.

    On a cluster the operator has put this file on every machine. A flag such as `--store` can name
    another store than the file does; the file is then not used.
    """
    file = environment.get(_VARIABLE, "")
    if not file or not url:
        return ""
    try:
        is_same = Path(file).read_text(encoding="utf-8").strip() == url
    except (OSError, UnicodeDecodeError):
        return ""
    return str(Path(file).absolute()) if is_same else ""
