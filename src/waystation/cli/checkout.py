"""Packages of the source checkout that are not part of the wheel: benchmarks and demo."""

from __future__ import annotations

import sys
from pathlib import Path

import waystation
from waystation.errors import SettingsError


def require_checkout(package: str, subject: str) -> None:
    """Make a package of the source checkout importable.

    `package` is its path in the checkout, such as `bench/waystation_bench`. Raise SettingsError if
    Waystation was not installed from a checkout; `subject` starts the message.
    """
    folder = Path(waystation.__file__).resolve().parents[2] / package
    if not (folder / "__init__.py").is_file():
        raise SettingsError(
            f"{subject} part of the source checkout.",
            hint="Clone the repository and run `make core` in it.",
        )
    if str(folder.parent) not in sys.path:
        sys.path.append(str(folder.parent))
