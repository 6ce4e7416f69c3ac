"""The guide about steps that reach out: its code runs as it stands, and does what the page says."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from waystation import Waystation
from waystation.testing import Station

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "steps-that-reach-out.md"


def written(folder: Path, port: int) -> dict[str, Path]:
    """The files of the page, with a port that is free."""
    files = {}
    for block in re.findall(r"```python\n(# (\w+\.py).*?)```", PAGE.read_text(), re.DOTALL):
        files[block[1]] = folder / block[1]
        files[block[1]].write_text(block[0].replace("9090", str(port)))
    return files


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(file: Path, port: int) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, str(file)], stderr=subprocess.DEVNULL)
    try:
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, "the carrier has ended"
            time.sleep(0.02)
        yield
    finally:
        process.kill()
        process.wait()


def app_of(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location("shipping", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.app


def test_the_page_ships_a_parcel_and_undoes_what_failed(tmp_path: Path) -> None:
    text, port = PAGE.read_text(), free_port()
    files = written(tmp_path, port)
    assert sorted(files) == ["carrier.py", "shipping.py"]
    (create,) = re.findall(r"^waystation topic create .*$", text, re.MULTILINE)
    (start,) = re.findall(r"^waystation tx start .*$", text, re.MULTILINE)
    _, _, _, pipeline, data, *_ = shlex.split(start)
    (shown,) = re.findall(r'^\{"parcel".*$', text, re.MULTILINE)
    with (
        running(files["carrier.py"], port),
        Station(app=app_of(files["shipping.py"])) as station,
        Waystation(station.url) as ws,
    ):
        command = [sys.executable, "-m", "waystation.cli.main", *shlex.split(create)[1:]]
        environment = {**os.environ, "WAYSTATION_URL": station.url}
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
        done = ws.transactions.start(pipeline, json.loads(data)).wait("30s")
        assert (done.status, done.output) == ("success", json.loads(shown))
        # Nobody ships to Atlantis: the carrier says so, and is told that it is off.
        tx = ws.transactions.start(pipeline, {"order": 8, "to": "Atlantis"})
        failed = tx.wait("30s")
        assert failed.status == "failed"
        assert "the endpoint answered 404" in failed.output["error"]
        journal = [(each.place, each.last[-1].outcome) for each in tx.journal().steps]
        assert journal == [("1", "success"), ("2", "failed"), ("2~.1", "success")]
        # What is missing is told at once, and there is nothing to undo but what the page undoes.
        missing = ws.transactions.start(pipeline, {"to": 7}).wait("30s")
        assert [each["field"] for each in missing.output["errors"]] == ["order", "to"]
