"""The guide's own files: its settings, its receiver and its commands do what it says."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import clean_environment, command, running_station
from waystation.delivery.signing import new_secret
from waystation.runtime.ids import RandomIds

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "webhooks.md"


def block(kind: str) -> str:
    found = re.search(rf"```{kind}\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found.group(1)


@pytest.fixture
def port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.mark.slow
def test_the_guide_s_receiver_gets_a_verified_message(tmp_path: Path, port: str) -> None:
    # Given the files of the guide, on a port that is free
    secret = new_secret(RandomIds())
    (tmp_path / "crm.secret").write_text(secret + "\n")
    (tmp_path / "waystation.toml").write_text(block("toml").replace("8000", port))
    (tmp_path / "receiver.py").write_text(block("python").replace("8000", port))
    receiver = subprocess.Popen(
        [sys.executable, "receiver.py"],
        cwd=tmp_path,
        env={**clean_environment(), "WEBHOOK_SECRET": secret},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        with running_station(tmp_path, "dev", "--port", "0") as station:
            # When its command is run
            line = re.search(r"waystation (channel publish .*)", block("sh"))
            assert line is not None
            words = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", line.group(1))]
            subprocess.run(
                command(*words, "--url", station["url"]),
                env=clean_environment(),
                check=True,
                capture_output=True,
                timeout=60,
            )
            assert receiver.stdout is not None
            printed = receiver.stdout.readline()
    finally:
        receiver.kill()
        receiver.communicate()

    # Then the receiver prints what the guide shows
    assert f"# {printed}" in block("sh")
