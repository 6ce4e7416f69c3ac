"""Hypothesis for the tests of channels: no deadline on a shared machine, and a way to replay."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("waystation", deadline=None, print_blob=True)
settings.load_profile("waystation")
