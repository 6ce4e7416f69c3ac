"""What the pages on transactions tell people to type does what they say, line by line."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Run, clean_environment, running_station
from tests.cli.test_topic_commands import here  # noqa: F401 (a fixture)
from tests.cli.test_topic_guides import blocks, documents, lines_of
from tests.helpers.waiting import eventually_sync
from tests.test_examples import ROOT, as_curl_would
from waystation import Waystation

WRITING = ROOT / "docs" / "guides" / "transactions.md"
FOLLOWING = ROOT / "docs" / "guides" / "following-transactions.md"
WORKERS = ROOT / "docs" / "operating" / "workers.md"

#: Blocks of code that are files of their own; all others of a page are one module.
_is_file = re.compile(r"# (\w+\.py)").match


def write_files(folder: Path) -> None:
    """The files that the pages show: the app, a client, a test."""
    app = []
    for block in (*blocks(WRITING, "python"), *blocks(FOLLOWING, "python")):
        named = _is_file(block)
        if named is None or named[1] == "shop.py":
            app.append(block)
        else:
            (folder / named[1]).write_text(block, encoding="utf-8")
    (folder / "shop.py").write_text("\n".join(app), encoding="utf-8")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("shop")
    write_files(folder)
    arguments = ("dev", "--app", "shop:app", "--port", "0", "--data", "data")
    with running_station(folder, *arguments) as said:
        yield said["url"], folder


def python(folder: Path, url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**clean_environment(), "WAYSTATION_URL": url},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


class Typist:
    """Types the commands of a page; $ID is the transaction that was started last."""

    def __init__(self, run: Run, url: str) -> None:
        self._run = run
        self._url = url
        self.id = ""

    def type(self, line: str) -> str:
        if line.startswith("waystation why") and self.id:
            self._until_it_waits()
        words = shlex.split(line.replace("$ID", self.id), comments=True)[1:]
        done = self._run(*words, "--url", self._url)
        assert done.returncode == 0, (line, done)
        started = re.match(r"(?:started )?(tx-[0-9a-f]{40})", done.stdout)
        if started is not None:
            self.id = started[1]
        return str(done.stdout)

    def _until_it_waits(self) -> None:
        """People are slower than steps; a test is not."""
        with Waystation(self._url) as ws:
            eventually_sync(lambda: ws.transactions.why(self.id).code not in ("queued", "running"))


def typed(page: Path) -> list[str]:
    """The commands of a page, without those that run for ever."""
    lines = lines_of(page, "waystation")
    return [line for line in lines if line.split()[1] not in ("dev", "serve")]


def test_the_commands_of_writing_transactions_work_from_the_first_to_the_last(
    here: Run,  # noqa: F811 (the fixture)
    shop: tuple[str, Path],
) -> None:
    typist = Typist(here, shop[0])

    ended, started, why, switched, waited, fanned = map(typist.type, typed(WRITING))

    assert re.fullmatch(r"tx-\w+ is success, order, since \S+\n  external id o-7\n.*\n", ended)
    assert ended.splitlines()[-1] in WRITING.read_text(encoding="utf-8")
    assert started.startswith("started tx-00")
    assert why.startswith("waiting_switch  It waits for switch approved")
    assert switched == "approved is set, and was waited for\n"
    assert " is success, big-order, " in waited
    assert f"# {fanned.splitlines()[-1]}" in WRITING.read_text(encoding="utf-8")


def test_the_pipelines_of_writing_transactions_end_as_the_page_says(
    shop: tuple[str, Path],
) -> None:
    with Waystation(shop[0]) as ws:
        for type_, data, status, output in (
            ("order", {"cents": 0}, "failed", {"error": "there is nothing to pay"}),
            ("cancel-order", {"cents": 5}, "aborted", {"refunded": 5}),
            ("deliver-order", {"cents": 5}, "success", {"cents": 5, "parcels": []}),
        ):
            ended = ws.transactions.start(type_, data).wait("30s")
            assert (ended.status, ended.output) == (status, output)


def test_the_commands_of_following_transactions_work_from_the_first_to_the_last(
    here: Run,  # noqa: F811 (the fixture)
    shop: tuple[str, Path],
) -> None:
    typist = Typist(here, shop[0])

    _, why, _, waited, journal = map(typist.type, typed(FOLLOWING))

    page = FOLLOWING.read_text(encoding="utf-8")
    assert " ".join(why.split(";")[0].split()) in " ".join(page.split())
    assert "external id o-17" in waited
    rows = [line for line in page.splitlines() if line.startswith(("place ", "1  ", "2  "))]
    told = journal.splitlines()[1:5]
    assert [line.split()[:4] for line in told] == [line.split()[:4] for line in rows]
    assert "info charged receipt=receipt-" in journal


def test_the_requests_of_following_transactions_work_from_the_first_to_the_last(
    shop: tuple[str, Path],
) -> None:
    first, *rest = lines_of(FOLLOWING, "curl")
    started = json.loads(as_curl_would(first, shop[0]))
    transaction_id = started["metadata"]["txId"]

    switched, ended, listed, why = (
        json.loads(as_curl_would(line.replace("$ID", transaction_id), shop[0])) for line in rest
    )

    assert switched["switches"] == {"approved": "yes"}
    told = json.loads(documents(FOLLOWING)[0])
    assert list(ended) == list(told)
    assert list(ended["metadata"]) == list(told["metadata"])
    assert ended["metadata"]["notifiedTime"] >= ended["metadata"]["completionTime"]
    same = ("owner", "externalId", "transactionType", "status")
    assert [ended["metadata"][name] for name in same] == [told["metadata"][name] for name in same]
    assert ended["data"] == told["data"]
    assert [each["id"] for each in listed["transactions"]] == [transaction_id]
    assert why["code"] == "final"


def test_the_client_prints_what_its_comments_say(shop: tuple[str, Path]) -> None:
    url, folder = shop
    done = python(folder, url, "client.py")

    shown = re.findall(r"print\(.*\) +# (.*)", (folder / "client.py").read_text())
    assert (done.returncode, done.stdout.splitlines()) == (0, shown), done.stderr


@pytest.mark.slow
def test_the_test_of_writing_transactions_passes(shop: tuple[str, Path]) -> None:
    url, folder = shop
    done = python(folder, url, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shop.py")

    assert "1 passed" in done.stdout, (done.stdout, done.stderr)


def test_the_lines_of_workers_md_work_from_the_first_to_the_last(
    here: Run,  # noqa: F811 (the fixture)
    shop: tuple[str, Path],
) -> None:
    typist = Typist(here, shop[0])
    nodes, *told = (json.loads(as_curl_would(line, shop[0])) for line in lines_of(WORKERS, "curl"))
    paused, resumed, *lists = map(typist.type, typed(WORKERS))

    assert "order/charge" in nodes["nodes"][0]["steps"]
    assert [each["value"] for each in told] == [20, 1, 0]
    assert (paused, resumed) == ("order is paused\n", "order is active\n")
    assert lists == ["No such transactions.\n"] * 2


def codes_of(page: Path) -> set[str]:
    return set(re.findall(r"`((?:transaction|pipeline|app)\.[a-z-]+)`", page.read_text("utf-8")))


def test_troubleshooting_tells_of_every_code_that_people_can_meet() -> None:
    """What scripts tell workers, and no client ever sees, is not in it."""
    inside = {"transaction.already-queued", "transaction.illegal-transition"}
    inside |= {"transaction.lease-lost", "transaction.not-running", "transaction.status-invalid"}
    every = codes_of(ROOT / "docs" / "reference" / "errors.md")

    assert codes_of(ROOT / "docs" / "operating" / "troubleshooting.md") == every - inside
