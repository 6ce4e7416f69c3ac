"""What the pages on replies and on the archive tell people to type does what they say."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import Run, clean_environment, running_station
from tests.cli.test_topic_commands import here  # noqa: F401 (a fixture)
from tests.cli.test_topic_guides import blocks, documents
from tests.cli.test_transaction_guides import Typist, python, typed
from tests.helpers.waiting import eventually_sync
from tests.test_examples import ROOT
from waystation import Waystation

REPLIES = ROOT / "docs" / "guides" / "replies.md"
ARCHIVE = ROOT / "docs" / "operating" / "archive.md"
#: Where the page has its receiver.
PORT = "8001"

_file = re.compile(r"# (\w+\.py)").match


class Listener:
    """The receiver of the page, on a free port; what it printed."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self._process = process
        self.port = port

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def _answers(process: subprocess.Popen[str], port: int) -> bool:
    assert process.poll() is None, "the receiver has ended"
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def listening(folder: Path) -> Iterator[Listener]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code = (folder / "receiver.py").read_text(encoding="utf-8").replace(PORT, str(port))
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", code],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        eventually_sync(lambda: _answers(process, port), timeout=30)
        yield Listener(process, port)
    finally:
        process.terminate()
        process.communicate(timeout=30)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("shop")
    for block in blocks(REPLIES, "python"):
        named = _file(block)
        assert named is not None, "each block is a file of its own"
        (folder / named[1]).write_text(block, encoding="utf-8")
    with running_station(
        folder, "dev", "--app", "shop:app", "--port", "0", "--data", "data"
    ) as said:
        yield said["url"], folder


class Patient(Typist):
    """Reader who types a command only when the server has done what the page says before it."""

    def type(self, line: str) -> str:
        if self.id and "tx switch" in line:
            self._until_waiting()
        if self.id and "tx webhook" in line:
            self._until_told()
        return super().type(line)

    def _until_waiting(self) -> None:
        with Waystation(self._url) as ws:
            eventually_sync(lambda: ws.transactions.get(self.id).status == "waiting_switch")

    def _until_told(self) -> None:
        with Waystation(self._url) as ws:

            def told() -> bool:
                found = ws.transactions.webhook(self.id)
                return bool(found.status) and all(each.state == "idle" for each in found.receivers)

            eventually_sync(told)


def test_the_commands_of_hearing_of_transactions_work_from_the_first_to_the_last(
    here: Run,  # noqa: F811 (the fixture)
    shop: tuple[str, Path],
) -> None:
    url, folder = shop
    page = REPLIES.read_text(encoding="utf-8")
    with listening(folder) as receiver:
        typist = Patient(here, url)
        lines = [line.replace(PORT, str(receiver.port)) for line in typed(REPLIES)]

        told = dict(zip(lines, map(typist.type, lines), strict=True))

        outputs = list(told.values())
        assert outputs[2].startswith("started tx-00")
        assert outputs[3] == "picked-up is set, and was waited for\n"
        assert " is success, order, " in outputs[4]
        heard = receiver.line()
        while not heard.startswith("complete"):
            assert heard.startswith("progressReport "), heard
            heard = receiver.line()
        assert f"```\n{heard}```" in page
    shown, browsed, fetched, listed, redriven, all_redriven, discarded = outputs[5:]
    assert f"the client of {typist.id} was told its end at " in shown
    assert typist.id in browsed
    assert typist.id in fetched
    assert listed == "Nothing was given up.\n"
    assert (redriven, all_redriven, discarded) == ("redriven 0\n", "redriven 0\n", "discarded 0\n")


def test_an_event_has_the_fields_that_the_page_shows(shop: tuple[str, Path]) -> None:
    url, _ = shop
    shown = json.loads(documents(REPLIES)[0])
    with Waystation(url) as ws:
        ws.topics.create("told")
        tx = ws.transactions.start("order", {"cents": 1250}, metadata={"topic": "told"})
        tx.set_switch("picked-up", True)
        eventually_sync(lambda: list(ws.topics.messages("told", group=tx.id)))
        found = list(ws.topics.messages("told", group=tx.id))
        event = found[0].content
    assert list(event) == list(shown)
    assert list(event["metadata"]) == list(shown["metadata"])
    assert (event["eventType"], event["data"]) == (shown["eventType"], shown["data"])
    assert found[0].id == f"{tx.id}.{event['metadata']['sequenceOfUpdate']}"


def test_the_client_of_the_page_prints_what_its_comments_say(shop: tuple[str, Path]) -> None:
    url, folder = shop
    done = python(folder, url, "client.py")

    shown = re.findall(r"print\(.*\) +# (.*)", (folder / "client.py").read_text())
    assert done.returncode == 0, done.stderr
    # Its progress may be over before it asks.
    printed = [line for line in done.stdout.splitlines() if "packed" not in line]
    assert printed == shown


def test_the_commands_of_the_archive_work_from_the_first_to_the_last(
    here: Run,  # noqa: F811 (the fixture)
    shop: tuple[str, Path],
) -> None:
    url, _ = shop
    with Waystation(url) as ws:
        tx = ws.transactions.start("order", {"cents": 1}, external_id="o-7")
        typist = Typist(here, url)

        status, retried, listed, found = map(typist.type, typed(ARCHIVE))

        assert "wait to be archived" in status
        assert retried == "0 are due now that were not\n"
        assert listed == "No such transactions.\n"
        assert found.startswith(f"{tx.id} is ")
        tx.cancel()


def test_the_settings_of_the_archive_are_told_with_their_defaults() -> None:
    every = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (`(?:archive|transactions)\.\S+`.*?) \| (.*?) \|", ARCHIVE.read_text(), re.M
    )
    assert len(rows) == 4
    for names, values in rows:
        given = re.findall(r"`([\w.]+)`", names)
        prefix = given[0].rpartition(".")[0]
        for name, value in zip(given, values.split(", "), strict=True):
            whole = name if name.startswith(prefix) else prefix + name
            line = next(line for line in every.splitlines() if f"`{whole}`" in line)
            if value[0].isdecimal():
                assert float(line.split("|")[2].strip().strip("`")) == float(value)
