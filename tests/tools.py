"""Tools that only slow tests need: where one is absent they skip, except in CI, where they fail."""

from __future__ import annotations

import os
import shutil

import pytest


def require_tool(name: str) -> str:
    """The path of a program."""
    found = shutil.which(name)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"{name} is missing, and CI does not skip")
        pytest.skip(f"{name} is not installed")
    return found
