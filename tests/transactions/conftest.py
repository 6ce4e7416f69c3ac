"""Fixtures of the tests of transactions."""

from __future__ import annotations

import pytest

from waystation.config import Config


@pytest.fixture
def settings(worker_store_settings: Config) -> Config:
    """Return settings of a node on the emptied store of this test process."""
    return worker_store_settings
