"""Runs the real command line in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from waystation.config import Config
from waystation.testing import Station

Run = Callable[..., subprocess.CompletedProcess[str]]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "waystation.cli.main", *arguments]


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if "WAYSTATION" not in name}


@pytest.fixture
def settings(worker_store_settings: Config) -> Config:
    """Return settings of a node on the emptied store of this test process."""
    return worker_store_settings


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a command in an empty directory."""

    def run(
        *arguments: str, text: str = "", seconds_max: float = 100, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*arguments),
            cwd=tmp_path,
            env={**clean_environment(), **environment},
            input=text,
            capture_output=True,
            text=True,
            timeout=seconds_max,
            check=False,
        )

    return run


@contextmanager
def running_station(
    folder: Path, name: str, *arguments: str, history: str = "--no-history"
) -> Iterator[dict[str, Any]]:
    """Run `dev` or `serve`; yield the facts that it prints, and its process.

    `history` is the option for the data pipeline; empty: none.
    """
    process = subprocess.Popen(
        command(name, *([history] if history else []), *arguments, "--json"),
        cwd=folder,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr else ""
        yield {**json.loads(line), "process": process}
    finally:
        process.terminate()
        process.communicate(timeout=30)


@pytest.fixture(scope="session")
def _own_station() -> Iterator[Station]:
    with Station() as opened:
        yield opened


@pytest.fixture
def station(_own_station: Station) -> Station:
    """One whose time was not moved by anybody: a command reckons with the time of its machine."""
    _own_station.flush()
    return _own_station
