"""examples/flaky: once the endpoint is repaired, it gets all messages in order."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import clean_environment, running_station
from tests.test_examples import ROOT
from tests.transactions.test_reaching_guide import free_port

EXAMPLE = ROOT / "examples" / "flaky"
#: Where the story looks for its station and has its hook; tests have other ports.
STATION, HOOK = "http://127.0.0.1:7070", "http://127.0.0.1:9000"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "flaky"))


@contextmanager
def endpoint(folder: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """The hook of the example, as a user runs it."""
    with subprocess.Popen(
        [sys.executable, "endpoint.py", str(port)],
        cwd=folder,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


@pytest.mark.slow
def test_flaky_example_repaired_endpoint_gets_all_messages_in_order(folder: Path) -> None:
    port = free_port()
    with (
        running_station(
            folder, "dev", "--port", "0", "--data", "data", "--time-machine"
        ) as station,
        endpoint(folder, port) as hook,
    ):
        story = (folder / "story.py").read_text(encoding="utf-8")
        assert STATION in story
        assert HOOK in story
        story = story.replace(STATION, station["url"])
        (folder / "story.py").write_text(story.replace(HOOK, f"http://127.0.0.1:{port}"))
        told = subprocess.Popen(
            [sys.executable, "story.py"],
            cwd=folder,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        ended = threading.Event()
        # Nobody waits for 21 seconds here: time passes until the story is over.
        clock = threading.Thread(target=advance_until, args=(ended, station["url"]))
        clock.start()
        try:
            out, error = told.communicate(timeout=100)
        finally:
            ended.set()
            clock.join()
        assert told.returncode == 0, error
        partition, offset, durability, count = out.split()
        assert (partition.isdigit(), offset, durability, count) == (True, "2", "memory", "3")
        assert hook.stdout is not None
        received = [hook.stdout.readline() for _ in range(3)]

    assert received == [f"order-17 {{'n': {n}}}\n" for n in range(3)]


def advance_until(ended: threading.Event, url: str) -> None:
    """A second more, again and again."""
    while not ended.wait(0.05):
        body = b'{"seconds": 1}'
        urllib.request.urlopen(f"{url}/v1/time/advance", body, timeout=30).close()
