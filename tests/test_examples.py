"""Every example runs against a real station and prints what it says it prints."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from waystation.testing import Station

ROOT = Path(__file__).resolve().parent.parent
PRINTED = {
    "first_channel.py": "order-7 {'total': 12.5}\nunread: 0\n",
    "produce_and_browse.py": (
        "produced: 300\n"
        "customer-1: 100 orders, in order: True\n"
        "order-7 again: duplicate\n"
        "without the codec: ['gzip'], with it: {'card': '4111…'}\n"
    ),
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


def as_curl_would(line: str, url: str, folder: Path | None = None) -> str:
    """Sends what the curl line says; curl itself may be missing on a fresh machine."""
    words = shlex.split(line, comments=True)[1:]
    method = words.pop(words.index("-X") + 1) if "-X" in words else ""
    headers = {}
    while "-H" in words:
        words.remove("-H")
        name, text = next(word for word in words if re.match(r"[A-Za-z-]+: ", word)).split(": ", 1)
        words.remove(f"{name}: {text}")
        headers[name] = text
    body = words.pop(words.index("-d") + 1).encode() if "-d" in words else None
    if body is not None and body.startswith(b"@"):
        assert folder is not None
        body = (folder / body[1:].decode()).read_bytes()
    (target,) = [word for word in words if not word.startswith("-")]
    target = target.replace("localhost:7070", url.removeprefix("http://"))
    # Like curl, and like urllib: a body is a form that is posted, unless it is told otherwise.
    request = urllib.request.Request(
        f"http://{target}", data=body, headers=headers, method=method or None
    )
    with urllib.request.urlopen(request, timeout=30) as reply:
        return str(reply.read().decode())
