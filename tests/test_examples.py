"""Every example runs against a real station and prints what it says it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from waystation.testing import Station

ROOT = Path(__file__).resolve().parent.parent
PRINTED = {
    "first_channel.py": "order-7 {'total': 12.5}\nunread: 0\n",
    "wait_for_answer.py": "answer: {'approved': True}\n",
    "worker.py": "payments: (5, 10.0)\n",
}


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_example(name: str, station: Station) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)],
        env={**os.environ, "WAYSTATION_URL": station.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == PRINTED[name]


def test_the_curl_lines_of_the_readme_work(station: Station) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^curl .*$", text, re.MULTILINE)
    assert len(lines) == 3
    host = station.url.removeprefix("http://")

    outputs = [
        subprocess.run(
            [
                "bash",
                "-c",
                "exec " + line.replace("localhost:7070", host).replace("curl", "curl -s"),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for line in lines
    ]

    shown = re.search(r'\{"channelID".*', text)
    assert shown is not None
    assert outputs[-1].partition('"ackHandle"')[0] == shown.group().partition('"ackHandle"')[0]
