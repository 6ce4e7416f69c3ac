"""The example of a rolling deploy runs as it is printed: nothing is lost, all is in its order."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import clean_environment, command, running_station
from tests.test_examples import ROOT

EXAMPLE = ROOT / "examples" / "rolling_deploy"
PRINTED = """\
sent: 600 handled: 600
keys in order: 20
keys after the deploy: ['blue-2', 'red-2']
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "rolling_deploy"))


@contextmanager
def relay_of(folder: Path) -> Iterator[str]:
    """The relay as a user runs it, beside the station; where its door is."""
    with subprocess.Popen(
        command("relay"), cwd=folder, env=clean_environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            (door,) = json.loads(process.stdout.readline())["relay"]
            yield door["address"]
        finally:
            process.terminate()


@pytest.mark.slow
def test_workers_are_replaced_under_load_and_every_envelope_arrives_once_in_order(
    folder: Path,
) -> None:
    door = '[relay]\ndoors = [["http", "127.0.0.1", 0]]\n'
    (folder / "waystation.toml").write_text(door)
    with (
        running_station(folder, "dev", "--port", "0") as station,
        relay_of(folder) as address,
    ):
        told = subprocess.run(
            [sys.executable, "deploy.py"],
            cwd=folder,
            env={
                **clean_environment(),
                "WAYSTATION_URL": station["url"],
                "RELAY_URL": f"http://{address}/",
            },
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert (told.returncode, told.stdout) == (0, PRINTED), told.stderr


def test_the_ports_of_the_example_are_those_that_its_commands_have() -> None:
    text = (EXAMPLE / "deploy.py").read_text(encoding="utf-8")
    assert "http://127.0.0.1:8071/" in text
    settings = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    assert "8071" in settings
