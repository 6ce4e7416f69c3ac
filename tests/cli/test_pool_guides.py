"""What the pages on pools tell people to type does what they say, line by line."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from tests.cli.conftest import Run, clean_environment
from tests.cli.test_topic_commands import here  # noqa: F401 (a fixture)
from tests.cli.test_topic_guides import blocks, lines_of
from tests.test_examples import ROOT
from waystation import App, Waystation
from waystation.pools import PoolOptions
from waystation.testing import Station

CONCEPT = ROOT / "docs" / "concepts" / "pools.md"
USING = ROOT / "docs" / "guides" / "pools.md"
WORKERS = ROOT / "docs" / "guides" / "workers-of-pools.md"
OPENAPI = ROOT / "docs" / "reference" / "openapi.json"
PRINTED_URL = "http://127.0.0.1:7070"


def type_lines(page: Path, run: Run, url: str) -> list[str]:
    told = []
    for line in lines_of(page, "waystation"):
        done = run(*shlex.split(line, comments=True)[1:], "--url", url)
        assert done.returncode == 0, (line, done)
        told.append(str(done.stdout))
    return told


def printed_by(code: str, **names: object) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as told:
        exec(code, names)
    return told.getvalue()


def test_the_lines_of_the_concept_work(station: Station, here: Run) -> None:  # noqa: F811
    created, sent, shown = type_lines(CONCEPT, here, station.url)
    assert "agents" in created
    assert "waits for a worker" in sent
    assert "did:key:z6Mk" in shown


def test_the_guide_to_pools_works_from_the_first_line_to_the_last(
    station: Station,
    here: Run,  # noqa: F811
) -> None:
    first, step, asking = blocks(USING, "python")
    told = printed_by(first.replace(PRINTED_URL, station.url))
    assert told.startswith("added -\n")
    assert len(told.splitlines()) == 2
    app = App()
    printed_by(step, app=app)
    assert [each.name for each in app.pipelines] == ["ask"]
    with (
        Waystation(station.url) as ws,
        ws.pools.worker("agents", lambda message: {"key": message.key}),
    ):
        assert printed_by(asking, ws=ws) == "{'key': 'did:key:z6Mk'}\n"
    told = "".join(type_lines(USING, here, station.url))
    assert "did:key:z6Mk" in told


def test_every_option_of_a_pool_is_told_with_its_default() -> None:
    table = USING.read_text(encoding="utf-8").partition("## Options")[2]
    told = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE))))
    fields = {each.name for each in msgspec.structs.fields(PoolOptions)}
    # How agents are waited for, and workers forgotten, is for operators.
    assert told == fields - {"agent_key_ms", "worker_forget_seconds"}


def test_the_worker_of_the_guide_works_and_ends_in_order(station: Station, tmp_path: Path) -> None:
    (code,) = blocks(WORKERS, "python")
    (tmp_path / "work.py").write_text(code)
    with Waystation(station.url) as ws:
        ws.pools.create("agents")
        with subprocess.Popen(
            [sys.executable, "-u", "work.py"],
            cwd=tmp_path,
            env={**clean_environment(), "WAYSTATION_URL": station.url},
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            ws.pools.send("agents", "alice", {"n": 1})
            assert process.stdout is not None
            assert process.stdout.readline() == "alice {'n': 1}\n"
            while ws.pools.workers("agents").pending:
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        assert not ws.pools.workers("agents").workers


def test_every_request_that_the_guide_tells_is_in_the_reference() -> None:
    paths = json.loads(OPENAPI.read_text(encoding="utf-8"))["paths"]
    text = WORKERS.read_text(encoding="utf-8").partition("## In another language")[2]
    verbs = re.findall(r"/(beat|take|ack|nack|renew|answer|drain|leave)\b", text)
    assert len(set(verbs)) == 8
    worker = "/v1/pools/{pool}/workers/{uid}"
    assert "put" in paths[worker]
    for verb in verbs:
        assert "post" in paths[f"{worker}/{verb}"], verb
