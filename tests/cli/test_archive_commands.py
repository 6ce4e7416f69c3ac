"""`waystation archive`, `webhooks` and what `tx` has of both, as a user runs them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import running_station
from tests.helpers.waiting import eventually_sync
from waystation.cli.main import main

APP = """
from waystation import App, Wait

app = App()


@app.step("shop/approve")
async def approve(ctx, order):
    await ctx.progress({"asked": True})
    return order if ctx.switch("approved") else Wait("approved")


app.pipeline("approval", ["shop/approve"])
app.pipeline("at-once", ["util/checkpoint"])
"""
#: What has ended, or sleeps, leaves the store at once; a webhook has one attempt.
SETTINGS = """
[transactions]
archive_delay_seconds = 0.01
archive_pause_idle_seconds = 0.02
cache_seconds = 0.01

[webhooks]
attempts = 1
"""
#: Nobody listens there.
NOBODY = "http://127.0.0.1:9/hook"

Here = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("shop")
    (folder / "shop.py").write_text(APP)
    (folder / "waystation.toml").write_text(SETTINGS)
    arguments = ("dev", "--app", "shop:app", "--port", "0", "--data", "data")
    with running_station(folder, *arguments) as said:
        yield {**said, "folder": folder}


@pytest.fixture
def here(
    station: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Here:
    """Runs a command in this process, which is quicker than a process of its own."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr("sys.argv", ["waystation", *arguments, "--url", station["url"]])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        said = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, said.out, said.err)

    return run


def started(here: Here, *arguments: str) -> str:
    done = here("tx", "start", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def test_a_sleeper_leaves_the_store_and_comes_back_by_its_switch(here: Here) -> None:
    sleeper = started(here, "approval", "7", "--external-id", "order 1")
    eventually_sync(lambda: here("why", sleeper).stdout.startswith("archived "))
    shown = here("tx", "get", "--external-id", "order 1")
    assert shown.stdout.startswith(f"{sleeper} is waiting_switch, approval")
    waits = here("tx", "list", "--archived", "--status", "waiting_switch")
    assert sleeper in waits.stdout
    switched = here("tx", "switch", sleeper, "approved", "true")
    assert switched.stdout == "approved is set, and was waited for\n"
    ended = here("tx", "wait", sleeper, "30s")
    assert ended.returncode == 0, ended.stdout
    eventually_sync(lambda: sleeper in here("tx", "list", "--archived", "--since", "1h").stdout)


def test_a_wait_prints_progress(here: Here) -> None:
    waits = started(here, "approval")
    eventually_sync(lambda: '{"asked":true}' in here("tx", "get", waits).stdout)
    late = here("tx", "wait", waits, "2s", "--progress")
    assert late.returncode == 1
    assert late.stdout.startswith('  progress {"asked":true}\n')
    first, second = here("tx", "wait", waits, "1s", "--progress", "--json").stdout.splitlines()
    assert json.loads(first) == {"progress": {"asked": True}}
    assert json.loads(second)["metadata"]["txId"] == waits
    here("tx", "cancel", waits)


def test_the_status_of_the_archive_names_who_archives(here: Here) -> None:
    here("tx", "start", "at-once", "--wait", "30s")
    told = here("archive", "status")
    assert told.returncode == 0
    assert "wait to be archived" in told.stdout
    assert "nodeId-" in told.stdout
    found = json.loads(here("archive", "status", "--json").stdout)
    assert (found["status"]["cells"][0]["cell"], found["set_aside"]) == (0, [])
    assert here("archive", "retry").stdout == "0 are due now that were not\n"


def test_a_webhook_that_nobody_takes_is_listed_redriven_and_discarded(here: Here) -> None:
    told = started(here, "at-once", "--metadata", f"webhook={NOBODY}")
    eventually_sync(lambda: told in here("webhooks", "list").stdout)
    shown = here("tx", "webhook", told).stdout
    assert f"the client of {told} was not told its end yet" in shown
    assert NOBODY in shown
    assert "connect" in shown
    assert here("tx", "webhook", told, "--redrive").stdout == "redriven 1\n"
    eventually_sync(lambda: told in here("webhooks", "list").stdout)
    assert here("webhooks", "redrive").stdout == "redriven 1\n"
    eventually_sync(lambda: told in here("webhooks", "list").stdout)
    assert here("tx", "webhook", told, "--discard").stdout == "discarded 1\n"
    assert here("webhooks", "list").stdout == "Nothing was given up.\n"
    assert here("webhooks", "list", "--waiting").stdout == "Nothing waits.\n"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("tx", "get"), 2),
        (("tx", "get", "tx-1", "--external-id", "1"), 2),
        (("tx", "get", "--external-id", "nobody"), 3),
        (("tx", "list", "--archived", "--state", "running"), 2),
        (("tx", "list", "--since", "1h"), 2),
        (("tx", "list", "--archived", "--status", "done"), 2),
        (("tx", "list", "--archived", "--since", "soon"), 2),
        (("tx", "webhook", "tx-1", "--redrive", "--discard"), 2),
        (("tx", "webhook", "tx-1"), 3),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_sentence(
    here: Here, arguments: tuple[str, ...], code: int
) -> None:
    done = here(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("error ")


def test_the_archive_of_a_station_of_its_own_is_a_file_of_the_data_directory(
    station: dict[str, Any],
) -> None:
    """What is archived is in the data directory, beside everything else."""
    folder: Path = station["folder"]
    assert (folder / "data" / "archive.db").exists()
